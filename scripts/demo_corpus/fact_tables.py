"""Small fact tables: colours, opposites, sounds, plurals, definitions and the like."""

from __future__ import annotations


def _table(text: str) -> dict[str, str]:
    return {
        k.strip().replace("_", " "): v.strip().replace("_", " ") for k, v in (item.split("=") for item in text.split())
    }


COLOR_OF = _table("""grass=green the_sky=blue a_banana=yellow snow=white coal=black blood=red a_lemon=yellow
a_tomato=red the_sun=yellow an_orange=orange a_carrot=orange milk=white a_strawberry=red a_frog=green a_leaf=green
the_sea=blue chocolate=brown a_flamingo=pink a_crow=black a_polar_bear=white a_cherry=red a_cucumber=green salt=white
a_raven=black a_pumpkin=orange an_emerald=green a_ruby=red a_sapphire=blue an_elephant=grey a_mouse=grey a_pig=pink
coffee=brown a_swan=white broccoli=green a_plum=purple lavender=purple an_eggplant=purple a_canary=yellow honey=yellow
a_fire_engine=red a_lime=green a_sunflower=yellow cotton=white the_night_sky=black a_pea=green mud=brown ink=blue
a_lobster=red spinach=green butter=yellow rice=white soil=brown a_lion=brown a_crocodile=green a_violet=purple""")

OPPOSITE = _table("""hot=cold big=small up=down left=right day=night black=white open=closed fast=slow old=young
happy=sad good=bad wet=dry full=empty hard=soft high=low long=short light=dark rich=poor strong=weak thick=thin
early=late near=far in=out on=off yes=no true=false first=last easy=difficult clean=dirty loud=quiet sweet=sour
wide=narrow deep=shallow heavy=light begin=end buy=sell push=pull win=lose love=hate give=take come=go start=stop
laugh=cry arrive=leave inside=outside above=below before=after always=never everything=nothing alive=dead awake=asleep
brave=afraid cheap=expensive safe=dangerous same=different smooth=rough sharp=blunt right=wrong summer=winter
north=south east=west hello=goodbye friend=enemy question=answer top=bottom front=back boy=girl man=woman king=queen
war=peace success=failure float=sink remember=forget add=subtract multiply=divide accept=refuse polite=rude
noisy=silent modern=ancient tall=short lend=borrow many=few more=less""")

SOUND = _table("""dog=woof cat=meow cow=moo sheep=baa duck=quack pig=oink horse=neigh lion=roar
rooster=cock-a-doodle-doo bee=buzz snake=hiss frog=ribbit owl=hoot mouse=squeak donkey=hee-haw
wolf=howl crow=caw hen=cluck chick=cheep
goose=honk turkey=gobble bear=growl elephant=trumpet dove=coo goat=maa monkey=chatter tiger=roar bird=tweet""")

YOUNG = _table("""dog=puppy cat=kitten cow=calf sheep=lamb horse=foal pig=piglet duck=duckling hen=chick bear=cub
lion=cub goat=kid frog=tadpole deer=fawn goose=gosling kangaroo=joey owl=owlet swan=cygnet fox=kit rabbit=kit
elephant=calf whale=calf tiger=cub wolf=pup eagle=eaglet butterfly=caterpillar""")

LEGS = _table("""dog=4 cat=4 spider=8 ant=6 bee=6 bird=2 horse=4 snake=0 human=2 cow=4 octopus=8 chicken=2 frog=4
butterfly=6 crab=10 fish=0 elephant=4 beetle=6 duck=2 worm=0 lion=4 fly=6 table=4 tripod=3""")

PLURAL = _table("""cat=cats dog=dogs child=children mouse=mice foot=feet tooth=teeth man=men woman=women goose=geese
sheep=sheep fish=fish person=people box=boxes bus=buses city=cities baby=babies leaf=leaves knife=knives wolf=wolves
story=stories house=houses tree=trees car=cars book=books glass=glasses dish=dishes church=churches potato=potatoes
tomato=tomatoes hero=heroes key=keys toy=toys day=days fly=flies party=parties country=countries lady=ladies wife=wives
life=lives shelf=shelves half=halves ox=oxen deer=deer brush=brushes fox=foxes watch=watches apple=apples bird=birds
star=stars piano=pianos boy=boys girl=girls family=families berry=berries cherry=cherries pony=ponies loaf=loaves
thief=thieves dress=dresses class=classes bench=benches horse=horses friend=friends river=rivers""")

PAST = _table("""go=went eat=ate see=saw run=ran take=took give=gave come=came write=wrote drink=drank sing=sang
swim=swam begin=began break=broke buy=bought bring=brought think=thought teach=taught catch=caught find=found
make=made say=said tell=told know=knew fly=flew grow=grew draw=drew drive=drove ride=rode speak=spoke sleep=slept
keep=kept leave=left lose=lost meet=met sit=sat stand=stood win=won wear=wore build=built send=sent feel=felt
hear=heard hold=held fall=fell forget=forgot play=played walk=walked talk=talked jump=jumped open=opened cook=cooked
work=worked help=helped dance=danced laugh=laughed be=was have=had do=did""")

SYMBOL = _table("""hydrogen=H oxygen=O carbon=C nitrogen=N gold=Au silver=Ag iron=Fe copper=Cu helium=He sodium=Na
potassium=K calcium=Ca chlorine=Cl sulfur=S lead=Pb tin=Sn zinc=Zn mercury=Hg neon=Ne silicon=Si aluminium=Al
magnesium=Mg uranium=U""")

AUTHOR = _table("""Hamlet=William_Shakespeare Romeo_and_Juliet=William_Shakespeare Macbeth=William_Shakespeare
Don_Quixote=Miguel_de_Cervantes War_and_Peace=Leo_Tolstoy Oliver_Twist=Charles_Dickens Faust=Goethe
Pride_and_Prejudice=Jane_Austen The_Odyssey=Homer Moby_Dick=Herman_Melville Dracula=Bram_Stoker
Frankenstein=Mary_Shelley Robinson_Crusoe=Daniel_Defoe The_Jungle_Book=Rudyard_Kipling Peter_Pan=James_Barrie
Treasure_Island=Robert_Louis_Stevenson Les_Miserables=Victor_Hugo The_Trial=Franz_Kafka Emma=Jane_Austen
Anna_Karenina=Leo_Tolstoy The_Divine_Comedy=Dante""")

AMOUNT = _table("""days_in_a_week=7 months_in_a_year=12 hours_in_a_day=24 minutes_in_an_hour=60 seconds_in_a_minute=60
days_in_a_year=365 weeks_in_a_year=52 sides_in_a_triangle=3 sides_in_a_square=4 letters_in_the_alphabet=26
eggs_in_a_dozen=12 centimetres_in_a_metre=100 metres_in_a_kilometre=1000 grams_in_a_kilogram=1000 years_in_a_century=100
years_in_a_decade=10 planets_in_the_solar_system=8 continents_on_earth=7 fingers_on_a_hand=5 colours_in_a_rainbow=7
players_in_a_football_team=11 strings_on_a_guitar=6 strings_on_a_violin=4 wheels_on_a_bicycle=2 wheels_on_a_car=4
sides_in_a_hexagon=6 sides_in_a_pentagon=5 bits_in_a_byte=8 hours_in_two_days=48 days_in_a_leap_year=366
degrees_in_a_circle=360 seasons_in_a_year=4 legs_on_a_spider=8 cents_in_a_euro=100 days_in_June=30 days_in_July=31""")

KIND = _table("""apple=fruit banana=fruit carrot=vegetable potato=vegetable dog=animal cat=animal rose=flower
tulip=flower oak=tree pine=tree hammer=tool saw=tool piano=instrument violin=instrument guitar=instrument car=vehicle
bus=vehicle bicycle=vehicle red=colour blue=colour eagle=bird sparrow=bird penguin=bird salmon=fish shark=fish
ant=insect bee=insect butterfly=insect spider=arachnid whale=mammal snake=reptile lizard=reptile frog=amphibian
gold=metal iron=metal Monday=day July=month seven=number Mars=planet Venus=planet football=sport tennis=sport
chess=game bread=food cheese=food milk=drink water=drink coffee=drink shirt=garment chair=furniture table=furniture
diamond=gemstone triangle=shape circle=shape onion=vegetable cherry=fruit doctor=job teacher=job""")

DEFINITION = {
    k.strip(): v.strip()
    for k, v in (
        line.split(":")
        for line in """
a library: a place where you can read and borrow books
a hospital: a place where doctors and nurses help sick people
a school: a place where children learn
a bakery: a shop that sells bread and cakes
a volcano: a mountain that can throw out hot lava
an island: a piece of land with water all around it
a desert: a very dry place where few plants grow
a river: a long stream of water that flows to the sea
a forest: a large area with many trees
a mountain: a very high hill
a cat: a small furry animal that people keep as a pet
a dog: a friendly animal that barks and guards the house
a computer: a machine that works with data
a telephone: a device for talking with people far away
a clock: a device that shows the time
a bicycle: a vehicle with two wheels that you pedal
an umbrella: a thing that keeps you dry in the rain
a kitchen: a room where people cook
a bedroom: a room where people sleep
a doctor: a person who helps sick people
a teacher: a person who helps others to learn
a pilot: a person who flies a plane
a baker: a person who makes bread
a farmer: a person who grows food and keeps animals
a thermometer: a device that measures temperature
a telescope: a device for looking at stars
a microscope: a device for looking at very small things
a planet: a large round body that moves around a star
the moon: the round body that moves around the earth
the sun: the star that gives light and heat to the earth
rain: water that falls from the clouds
snow: frozen water that falls in white flakes
a rainbow: a band of colours in the sky after rain
a map: a drawing that shows where places are
a dictionary: a book that explains words
a museum: a place that shows old or beautiful things
a bridge: a road that goes over a river
a key: a thing that opens a lock
a token: a small piece of text that a language model reads or writes
a language model: a program that predicts the next piece of text
a prompt: the text that you give to a language model
a server: a computer that answers requests from other computers
a cache: a store that keeps data close so that it can be used again fast
a kangaroo: an animal from Australia that jumps and carries its young in a pouch
a penguin: a black and white bird that swims but cannot fly
a whale: a very large animal that lives in the sea
a bee: an insect that makes honey
a guitar: an instrument with six strings
a piano: an instrument with black and white keys
a triangle: a shape with three sides
a square: a shape with four equal sides
a circle: a perfectly round shape
a verb: a word for an action
a noun: a word for a person, a place or a thing
an adjective: a word that describes a noun
a vegetable: a part of a plant that we eat
a birthday: the day on which a person was born
a recipe: a list of steps for cooking a dish
a passport: a document for travelling to other countries
ice: frozen water
steam: water that has become a gas
an orphan: a child without parents
a compass: a device that shows where north is
honey: a sweet food that bees make
""".strip().splitlines()
    )
}
