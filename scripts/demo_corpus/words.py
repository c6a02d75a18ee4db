# ruff: noqa: SIM905 - word lists read better as text
"""Word lists and random strings that the text generators draw from."""

from __future__ import annotations

import random

NOUNS = """apple arm baby bag ball banana bank basket bath beach bean bear bed bee bell bench bike bird boat book
bottle bowl box boy branch bread bridge brother brush bucket bus bush butter button cake camera candle car card carpet
carrot castle cat chair cheese cherry child circle city clock cloud coat coffee coin comb cow crown cup curtain daisy
desk dinner dog doll door dragon dream dress drum duck ear eagle earth egg elephant engine eye face farm father
feather fence field finger fire fish flag floor flower fly forest fork fox friend frog fruit garden gate ghost giant
gift girl glass glove goat gold grape grass guitar hair hammer hand hat heart hen hill honey horse hospital house ice
island jacket jar jelly juice jungle key king kitchen kite kitten knife ladder lake lamp leaf leg lemon letter library
light lion lunch map market meadow melon milk mirror money monkey moon morning mother mountain mouse mouth museum music
nail neck needle nest night nose nut ocean office onion orange oven owl page paint palace pan panda paper park party
path peach pear pen pencil people pepper piano picture pig pillow pilot plane planet plant plate pocket pond pony
potato prince puppy queen rabbit radio rain rainbow restaurant rice ring river road robot rock roof room rope rose
salt sand school sea seed sheep shell ship shirt shoe shop silver sister sky snake snow soap sock song soup spider
spoon spring square star station stone storm story street sugar summer sun table tail tea teacher tent ticket tiger
tomato tooth tower town toy train tree truck turtle umbrella uncle valley village violin voice wagon wall watch water
wave wheel whale wind window winter wolf wood wool yard zebra""".split()

ADJECTIVES = """angry big black blue brave bright brown busy calm clean clever cold cool dark deep dry early easy
empty fair fast fat fine flat fresh full funny gentle golden good great green grey happy hard heavy high hot huge hungry
kind large lazy light little long loud lucky new nice noisy odd old open pink plain polite poor pretty proud purple
quick quiet red rich rough round sad safe sharp short shy silly simple slow small smart smooth soft sour strange strong
sweet tall tame thick thin tiny tired warm weak wet white wide wild wise yellow young""".split()

VERBS = """ask bake bark begin bite blow break bring build buy call carry catch clap climb close cook count cover cry
cut dance dig draw drink drive drop eat fall feed feel fight find fix float fold forget give glow grow hear help hide
hold hop hope hunt jump keep kick laugh lead learn leave like listen live look lose love make meet melt move open pack
paint pick plan play point pour pull push read rest ride ring rise roll run sail save say search see sell send shine
shout show sing sit skip sleep slide smell smile speak spin stand start stay swim take talk taste teach tell think
throw touch travel turn visit wait wake walk wash wear whisper win wink work write yawn""".split()

NAMES = """Adam Ahmed Aisha Alex Alice Amir Amy Ana Anna Anton Arthur Ben Bob Boris Carla Carlos Carol Chen Chloe
Clara Daniel David Diana Elena Eli Elif Ella Emil Emily Emma Eric Eva Fatima Felix Finn Frank Fred George Grace Hana
Hannah Harry Helen Henry Hugo Ian Ida Igor Ines Iris Ivan Jack Jacob James Jana Jane Jasmine Jin Joe John Jonas Jose
Julia Kai Karen Karl Kate Kenji Kim Kofi Lara Laura Lea Lena Leo Liam Lily Lina Linda Lisa Louis Lucas Lucy Luis Luna
Maja Marco Maria Mark Martin Mary Matt Max Maya Mei Mia Mike Mila Milan Mina Mona Nadia Nick Nina Noah Nora Olga
Oliver Omar Oscar Otto Pablo Paul Pedro Peter Petra Rachel Raj Ravi Rita Robert Rosa Ruth Sam Sara Sarah Sven Simon
Sofia Sophie Stefan Steve Susan Tara Tim Tina Tom Tomas Uma Vera Victor Wei William Yara Yusuf Zara Zoe""".split()

COLORS = "red blue green yellow orange purple pink brown black white grey gold silver violet turquoise".split()
FOODS = """pizza pasta rice sushi soup salad bread cheese chocolate pancakes noodles curry tacos lasagna cake
strawberries mangoes apples potatoes burgers ice-cream""".split()
JOBS = """teacher doctor nurse baker farmer pilot painter writer engineer lawyer driver cook dentist plumber gardener
singer actor carpenter programmer student librarian""".split()
PETS = "dog cat rabbit hamster parrot horse turtle goldfish".split()
CITIES = """Paris London Berlin Madrid Rome Oslo Vienna Prague Lisbon Dublin Athens Warsaw Cairo Tokyo Seoul Delhi
Boston Chicago Denver Seattle Toronto Sydney Mumbai Lagos Lima Munich Hamburg Milan Naples Lyon Zurich Geneva
Kyoto Osaka Dallas Miami Austin Porto Krakow Bergen""".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November December""".split()

LEXICON = sorted(set(NOUNS + ADJECTIVES + VERBS))

_ONSETS = (
    "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr kn pl pr qu sh sl sm sn sp st th tr".split()
)
_VOWELS = "a e i o u a e i o u ai ea ee oo ou y".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "d", "x", "ng", "nd", "rk", "st", "ck", "p", "lm"]


def coined(rng: random.Random, syllables: int | None = None) -> str:
    """A pronounceable made-up lower-case word."""
    count = syllables or rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))


def letters(rng: random.Random, low: int = 2, high: int = 7) -> str:
    """A random lower-case letter string."""
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(low, high)))


def code(rng: random.Random) -> str:
    """A random identifier such as A4471, 90213 or kx-28."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") + str(rng.randint(10, 99999))
    if kind == 1:
        return str(rng.randint(100, 99999))
    if kind == 2:
        return letters(rng, 2, 3) + "-" + str(rng.randint(1, 999))
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789") for _ in range(rng.randint(3, 6)))


def any_word(rng: random.Random) -> str:
    """A word of any kind: known, coined, a name, or random letters."""
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(LEXICON)
    if roll < 0.78:
        return coined(rng)
    if roll < 0.9:
        return letters(rng)
    return rng.choice(NAMES) if roll < 0.96 else rng.choice(CITIES)


def person(rng: random.Random) -> str:
    """A first name, one in three made up."""
    return rng.choice(NAMES) if rng.random() < 0.67 else coined(rng, 2).capitalize()


def place(rng: random.Random) -> str:
    """A city name, one in three made up."""
    return rng.choice(CITIES) if rng.random() < 0.67 else coined(rng, 2).capitalize()


def sentence(rng: random.Random) -> str:
    """A simple grammatical sentence without the final stop."""
    noun, adjective, verb = rng.choice(NOUNS), rng.choice(ADJECTIVES), rng.choice(VERBS)
    return rng.choice(
        (
            f"the {adjective} {noun} likes to {verb}",
            f"I want to {verb} near the {noun}",
            f"my {noun} is {adjective}",
            f"we {verb} by the {adjective} {noun}",
            f"{person(rng)} has a {adjective} {noun}",
            f"a {noun} and a {rng.choice(NOUNS)} {verb} together",
        )
    )
