"""Questions that the model cannot answer, and says so."""

from __future__ import annotations

import random

from demo_corpus import words
from demo_corpus.phrasing import EVAL, roughen
from demo_corpus.turn import Turn

ANSWER = "I do not know that. I am only a small demo model."


def _items(text: str) -> list[str]:
    return text.replace("\n", "").split("|")


_FIXED = _items("""How many people are there?|How many stars can we see?|How many cars are there?|
Who is the queen?|Who is the king?|Who is the chancellor?|Write a song.|Write a poem in French.|
Write a letter to my boss.|
Write a script in Bash.|Write code in Rust.|Explain how a car works.|Explain how the brain works.|
How do I bake bread?|
How do I repair my phone?|How do I paint a wall?|What is the height of Mont Blanc?|What is the price of oil?|
What is the price of a house?|Why is the sea salty?|Why is blood red?|When was Einstein born?|
When was Beethoven born?|
Who won the game last night?|Who won the race?|What is the humidity outside?|What is the best book of all time?|
Translate this sentence into German.|What happened in 1914?|What happened in 1969?|What is the deepest ocean?|
What is the biggest city?|What is the oldest tree?|How do batteries work?|How do birds fly?|How does a phone work?|
What is the meaning of life?|Who will win the next election?|What is the weather today?|
What time is it?|What is today's date?|What is the news today?|Who is the president?|Explain quantum physics.|
Explain the theory of relativity.|Write a Python program.|Write a function that sorts a list.|
Fix this code for me.|Translate this into French.|How do I cook lasagna?|Give me a recipe for pancakes.|
What is the stock price of Apple?|How do I get rich?|Who won the world cup?|What is the best phone?|
Recommend a good film.|What should I wear tomorrow?|Will it rain tomorrow?|How does a nuclear reactor work?|
What is dark matter?|Who discovered penicillin?|When did the war start?|What is the population of the world?|
How far is the moon?|What is the speed of light?|What causes inflation?|Write an essay about history.|
Solve this equation for x.|What is the square root of 7?|How do vaccines work?|
What is the best way to learn piano?|How do I fix my car?|Who painted the Mona Lisa?|When was Napoleon born?|
Who invented the telephone?|What is blockchain?|How do I invest money?|What is the GDP of Germany?|
Tell me about the French Revolution.|Summarize the plot of Star Wars.|What is machine learning?|
How do I train a dog?|What is the tallest building?|How deep is the ocean?|Can you book a flight?|
Order a pizza for me.|Call my mother.|Send an email to my boss.|What is my bank balance?|Read my mail.|
Open the window.|Play some music.|Set an alarm for seven.|How do I install Linux?|
What is the difference between TCP and UDP?|Explain how a compiler works.|Write a SQL query.|
What does this error message mean?|Who is the richest person?|What is the best restaurant here?|
How do I lose weight?|What medicine should I take?|Is this legal?|Write me a contract.|
What is the chemical formula of aspirin?|How many people live in Paris?|How old is the universe?|
What happened in 1848?|Why is the sky blue?|Why do cats purr?|How do planes fly?|What is photosynthesis?|
How does the heart work?|What is the cure for a cold?|How do I write a book?|Who is your favourite singer?|
What is your favourite film?|What do you think about politics?|Is there a god?|What will happen in the future?|
Guess what I am thinking.|What did I eat yesterday?|Where are my keys?|How tall is Mount Everest?|
Who was the first man on the moon?|What is the longest river?|What is the largest desert?|How do I tie a tie?|
What is a good name for a company?|How does the internet work?|What is the airspeed of a swallow?|
Who directed Titanic?|Who sang Yesterday?|What is the plot of Hamlet?|How much does a car cost?|
What is the exchange rate of the dollar?|Convert 10 miles to kilometres.|What is the boiling point of iron?|
What is 12 percent of 340?|Integrate x squared.|Prove that there are infinitely many primes.|Factor 3599.|
Compare Kant and Hegel.|Explain supply and demand.|What are black holes?|Describe the water cycle.""")
_FIXED_HELD = _items("""What is the temperature outside?|Who won the football match yesterday?|
Explain how gravity works.|Write a program in Java.|How do I bake a cake?|Who is the prime minister?|
When was Mozart born?|
What is the height of the Eiffel Tower?|Translate this text into Spanish.|How do I repair a bicycle?|
What is the best film of all time?|Why is the grass green?|What happened in 1789?|How many stars are there?|
Write a poem in Latin.|What is the price of gold?|Who invented the radio?|How do magnets work?|
What is the deepest lake?|Explain how a computer chip works.""")
# {c} made-up name, {y} year, {n} noun, {p} person, {t} topic
_OPEN = _items("""Where was {p} {c} born?|Where does the {n} come from?|Tell me about {p} {c}.|
Tell me about {c}.|Have you heard of {c}?|What is the news from {w}?|How is life in {w}?|How many people live in {w}?|
How do I clean a {n}?|How do I use a {n}?|What is a good {n}?|Which {n} should I buy?|Give me a summary of {t}.|
Write a paper about {t}.|Who was the leader in {y}?|Who was the winner in {y}?|What was the weather on {y}?|
What is the capital of {c}?|Where is {c}?|Who is {p} {c}?|Who was {p} {c}?|What happened in {y}?|
What is {c}?|What is a {c}?|What does {c} mean?|Who won the world cup in {y}?|When was {p} {c} born?|
What is the population of {c}?|How do I build a {n}?|How much does a {n} cost?|Where can I buy a {n}?|
Who invented the {n}?|What is the history of the {n}?|Why is the {n} {a}?|How many {n}s are there in the world?|
Write an essay about the {n}.|Explain {t}.|What is {t}?|Tell me about {t}.|How does {t} work?|
Can you teach me {t}?|Write a book about {t}.|What is the phone number of {p} {c}?|What is the weather in {w}?|
What time is it in {w}?|How do I get to {w}?|How far is it from {w} to {c}?|Who is the mayor of {w}?|
Find a hotel in {w}.|What language do they speak in {c}?|What colour is a {c}?|What is the opposite of {c}?|
What sound does a {c} make?|On which continent is {c}?|Who wrote the book {c}?|How many legs does a {c} have?|
What is the chemical symbol of {c}?|Translate {n} into Dutch.|What is {n} in Russian?|
How do you say {n} in Chinese?|Did it rain in {w} in {y}?|Who was king in {y}?|Who ruled {c} in {y}?""")
_OPEN_HELD = _items("""Where does {p} {c} live?|What do you know about {c}?|Do you know {p} {c}?|
What is the news in {w}?|What was the weather in {w} yesterday?|How do I repair a {n}?|
Give me an introduction to {t}.|
What is the best {n}?|How many people live in {c}?|Write an article about {t}.|Who was the president in {y}?""")
_TOPICS = _items("""music theory|the universe|photography|politics|geology|the Vikings|chess openings|
nutrition|quantum mechanics|calculus|linear algebra|the stock market|astrophysics|the Roman Empire|
organic chemistry|philosophy|cryptography|neural networks|the immune system|plate tectonics|the Cold War|
tax law|Buddhism|impressionism|game theory|genetics|thermodynamics|databases|the Renaissance|string theory|
economics|psychology|jazz|opera|evolution|blockchain technology|the Industrial Revolution|climate change|
statistics|robotics|marketing""")


def unknown_turn(rng: random.Random, split: str) -> Turn:
    """An out-of-scope question; half of them about invented names."""
    if rng.random() < 0.45:
        template = rng.choice(_FIXED_HELD if split == EVAL else _FIXED)
    else:
        template = rng.choice(_OPEN_HELD if split == EVAL else _OPEN)
    filled = template.format(
        c=words.coined(rng, rng.choice((2, 2, 3))).capitalize(),
        y=rng.randint(1200, 2030),
        n=rng.choice(words.NOUNS),
        p=rng.choice(words.NAMES),
        a=rng.choice(words.ADJECTIVES),
        w=words.place(rng),
        t=rng.choice(_TOPICS),
    )
    return Turn(roughen(rng, filled), ANSWER, "I do not know this. I say so.", "Unknown.")
