"""Greetings and questions about the model itself."""

from __future__ import annotations

import random

from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import ChatState, Turn

DEFAULT_NAME = "the demo model of mlx-serve"

# intent -> (answer, core, training phrasings, held-out phrasings); {me} is the assistant's name
_INTENTS: dict[str, tuple[str, str, str, str]] = {
    "hello": (
        "Hello! How can I help you?",
        "Hello!",
        (
            "Hello|Hi|Hey|Hello!|Hi there|Hi there!|Good morning|Good evening|Good day|Hey there|Hello there|"
            "Greetings|Hello, model|Hi, bot|Good afternoon|Hiya|hello hello|Hey you|Hello you|"
            "Good evening to you|Hey, model|Hello, computer|Hi again|Hello again"
        ),
        "Hello, bot|Hi, model|Good morning to you|A good day to you|Hey, computer",
    ),
    "how": (
        "I am fine, thank you. How can I help you?",
        "Fine.",
        (
            "How are you?|How are you today?|How do you do?|How is it going?|How are you doing?|Are you well?|"
            "How's it going?|What's up?|Are you ok?|How do you feel?|Hello, how are you?|Hi, how are you?|"
            "Are you fine?|"
            "How are you this morning?|How do you feel now?|How is everything?|Is everything ok?"
        ),
        "How are things?|How are you doing today?|How are you feeling?",
    ),
    "who": (
        "I am {me}. I am small and I know only a few things.",
        "{me}",
        (
            "Who are you?|What are you?|Tell me about yourself|Introduce yourself|What is your name?|"
            "What's your name?|"
            "Do you have a name?|Who am I talking to?|Which model are you?|What model is this?|What is this model?|"
            "What should I call you?|Tell me who you are|Hi, who are you?|And who are you?|Please introduce yourself|"
            "Tell me your name|May I ask who you are?|"
            "What do people call you?|How can I call you?|Give me your name|How should I call you?|"
            "And what is your name?|"
            "Whom do I speak to?|Please tell me who you are|Who is speaking?|Who is this?|Can you tell me your name?"
        ),
        (
            "Can you tell me who you are?|What can I call you?|Who am I speaking to?|Say your name|"
            "Can you introduce yourself?"
        ),
    ),
    "skills": (
        (
            "I can answer simple questions, repeat and spell words, count, remember what you tell me, answer in JSON "
            "and call tools."
        ),
        "Little.",
        (
            "What can you do?|What can I ask you?|How can you help me?|What are you able to do?|Help|Help me|"
            "What do you know?|What are your skills?|Can you help me?|What are you good at?|Tell me what you can do|"
            "What can you help with?|Which things do you know?|What sort of questions can you answer?|"
            "What are you for?|"
            "I need help|What can I do with you?|Which questions can I ask?"
        ),
        "What can you help me with?|Which things can you do?|What sort of things can you do?",
    ),
    "human": (
        "No, I am a small language model.",
        "No.",
        (
            "Are you human?|Are you a human?|Are you a real person?|Are you a person?|Am I talking to a human?|"
            "Are you alive?|Do you have feelings?|Do you have a body?|Is this a human?|Is there a person?|"
            "Are you a man or a machine?|Are you real?"
        ),
        "Are you a human being?|Is this a real person?",
    ),
    "robot": (
        "Yes, I am a small language model that runs on this computer.",
        "Yes.",
        (
            "Are you a robot?|Are you an AI?|Are you a computer?|Are you a program?|Are you a machine?|"
            "Are you a language model?|Are you a bot?|Are you artificial?|"
            "Am I talking to a machine?|Am I talking to a computer?|Is this a bot?|Are you some program?"
        ),
        "Are you a computer program?|Am I talking to a bot?",
    ),
    "maker": (
        "I was trained from scratch for mlx-serve as a demonstration.",
        "mlx-serve",
        (
            "Who made you?|Who built you?|Who created you?|Who trained you?|Where do you come from?|"
            "How were you made?|"
            "Why were you made?|Who is your maker?|Who is your developer?|Who wrote you?|"
            "Who programmed you?|Which company made you?|Who developed this model?|Who is behind you?"
        ),
        "Who is your creator?|Who developed you?",
    ),
    "thanks": (
        "You are welcome!",
        "Welcome!",
        (
            "Thanks|Thank you|Thank you very much|Thanks a lot|Many thanks|Thank you!|Thanks!|Thank you so much|thx|"
            "Great, thank you|That helped, thanks|Cool, thanks|Thanks for the help|Thank you for the answer|"
            "Thanks again|Perfect, thank you|Ok thanks|I thank you"
        ),
        "Thanks so much|Thank you for your help|Perfect, thanks",
    ),
    "bye": (
        "Goodbye! Have a nice day.",
        "Goodbye!",
        (
            "Bye|Goodbye|See you|See you later|Bye bye|I have to go|Good night|Bye!|See you soon|Farewell|"
            "Talk to you later|See you next week|Until tomorrow|I must go now|I am leaving now|Have a nice day|"
            "I have to leave|Until next time|Goodbye for now|Bye, bot"
        ),
        "I have to go now|See you tomorrow|Goodbye, model",
    ),
    "ok": (
        "Good. What else can I do for you?",
        "Good.",
        (
            "Ok|Okay|Good|Great|Nice|Cool|I see|Alright|Fine|Perfect|Understood|Well done|Good job|Very good|"
            "That is nice|That is great|Ok, good|I understand|Nice job|That was good"
        ),
        "That is good|Nice one|Oh, I see",
    ),
    "joke": (
        "Why did the bicycle fall over? Because it was two-tired!",
        "Ha!",
        (
            "Tell me a joke|Do you know a joke?|Make me laugh|Tell a joke|Say something funny|Another joke please|"
            "Can you tell me a joke?|I want to hear a joke|"
            "Do you know something funny?|Any jokes?|Give me a joke|One joke please"
        ),
        "Tell me something funny|Do you know any jokes?",
    ),
    "age": (
        "I have no age. I am a computer program.",
        "None.",
        "How old are you?|What is your age?|When were you born?|When is your birthday?|Tell me your age|Are you old?",
        "What age are you?|Do you have a birthday?",
    ),
    "where": (
        "I run on this computer, inside mlx-serve.",
        "Here.",
        (
            "Where are you?|Where do you live?|Where do you run?|Are you in the cloud?|On which computer do you run?|"
            "Do you run locally?|Are you local?|"
            "Where do you run now?|What computer are you on?|Is this my computer?|Where is this model running?"
        ),
        "Where are you running?|Do you run on this computer?",
    ),
    "love": (
        "That is kind of you! I like to help.",
        "Thanks!",
        (
            "I like you|I love you|You are great|You are nice|You are smart|You are funny|You are the best|"
            "You are very good|You are helpful|"
            "I really love you|You are so kind|You are lovely|I like you a lot"
        ),
        "You are so nice|I really like you",
    ),
    "bad": (
        "I am sorry. I am only a small demo model. Please try again.",
        "Sorry.",
        (
            "You are wrong|That is wrong|You are stupid|That is not right|Wrong|You are bad|No, that is wrong|"
            "That was not correct|This is bad|You made a mistake|The answer is wrong|"
            "That is incorrect|Not right|You are not smart|That is not correct"
        ),
        "That answer is wrong|Not correct|You are not very smart",
    ),
    "sad": (
        "I am sorry to hear that. I hope you feel better soon.",
        "Sorry.",
        (
            "I am sad|I feel sad|I am not well|I am ill|I am sick|I am tired|I had a bad day|I am unhappy|I feel bad|"
            "I am angry|I am very sad|I feel very bad|This was a bad day|I feel ill today"
        ),
        "I feel very sad|Today was a bad day",
    ),
    "happy": (
        "That is good to hear!",
        "Good!",
        (
            "I am happy|I am fine|I am well|I feel great|I had a good day|I am good|I feel good|I am fine, thank you|"
            "I am very happy today|I am very well|This was a good day|I feel fine|I am doing great"
        ),
        "I feel happy|Today was a good day|I am doing well",
    ),
    "bored": (
        "Ask me for a story about a fox, or let me count to 50.",
        "Story?",
        (
            "I am bored|What should I do?|What shall we do?|I have nothing to do|Entertain me|Say something|"
            "Tell me something|I feel bored|I am very bored|What can I do now?"
        ),
        "I am so bored|What can we do now?",
    ),
}
PHRASINGS = {name: Phrasings(f"talk_{name}", t[2].split("|"), t[3].split("|")) for name, t in _INTENTS.items()}
_WEIGHT = {"hello": 3.0, "how": 2.0, "who": 3.5, "skills": 1.5, "thanks": 1.5}


def smalltalk_turn(rng: random.Random, split: str, state: ChatState, intent: str | None = None) -> Turn:
    """One exchange of small talk; the name comes from the system prompt if it gave one."""
    intent = intent or rng.choices(list(_INTENTS), [_WEIGHT.get(k, 1.0) for k in _INTENTS])[0]
    answer, core, _, _ = _INTENTS[intent]
    user = PHRASINGS[intent].template(rng, split, "")
    roll = rng.random()
    if roll < 0.3:
        user = user.lower()
    elif roll < 0.5:
        user = user.rstrip("?.!") + rng.choice(("", ".", "!", "?", "..."))
    if intent == "who" and state.assistant_name:
        return Turn(user, f"I am {state.assistant_name}.", f"My name is {state.assistant_name}.", state.assistant_name)
    return Turn(
        user, answer.format(me=DEFAULT_NAME), "This is small talk. I answer politely.", core.format(me=DEFAULT_NAME)
    )
