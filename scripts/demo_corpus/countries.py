"""Countries with capital and continent, and some with their main language."""

from __future__ import annotations

_TABLE = """
Europe: Albania=Tirana Andorra=Andorra_la_Vella Austria=Vienna Belarus=Minsk Belgium=Brussels Bosnia=Sarajevo
Bulgaria=Sofia Croatia=Zagreb Cyprus=Nicosia Czechia=Prague Denmark=Copenhagen Estonia=Tallinn Finland=Helsinki
France=Paris Germany=Berlin Greece=Athens Hungary=Budapest Iceland=Reykjavik Ireland=Dublin Italy=Rome Latvia=Riga
Liechtenstein=Vaduz Lithuania=Vilnius Malta=Valletta Moldova=Chisinau Montenegro=Podgorica Netherlands=Amsterdam
Norway=Oslo Poland=Warsaw Portugal=Lisbon Romania=Bucharest Russia=Moscow Serbia=Belgrade Slovakia=Bratislava
Slovenia=Ljubljana Spain=Madrid Sweden=Stockholm Switzerland=Bern Ukraine=Kyiv United_Kingdom=London England=London
Scotland=Edinburgh Wales=Cardiff
Asia: Afghanistan=Kabul Armenia=Yerevan Azerbaijan=Baku Bahrain=Manama Bangladesh=Dhaka Bhutan=Thimphu
Cambodia=Phnom_Penh China=Beijing Georgia=Tbilisi India=New_Delhi Indonesia=Jakarta Iran=Tehran Iraq=Baghdad
Israel=Jerusalem Japan=Tokyo Jordan=Amman Kazakhstan=Astana Kuwait=Kuwait_City Kyrgyzstan=Bishkek Laos=Vientiane
Lebanon=Beirut Malaysia=Kuala_Lumpur Mongolia=Ulaanbaatar Myanmar=Naypyidaw Nepal=Kathmandu Oman=Muscat
Pakistan=Islamabad Philippines=Manila Qatar=Doha Saudi_Arabia=Riyadh South_Korea=Seoul North_Korea=Pyongyang
Syria=Damascus Taiwan=Taipei Tajikistan=Dushanbe Thailand=Bangkok Turkey=Ankara Uzbekistan=Tashkent Vietnam=Hanoi
Yemen=Sanaa Singapore=Singapore
Africa: Algeria=Algiers Angola=Luanda Botswana=Gaborone Cameroon=Yaounde Chad=N'Djamena Egypt=Cairo Eritrea=Asmara
Ethiopia=Addis_Ababa Gabon=Libreville Gambia=Banjul Ghana=Accra Guinea=Conakry Kenya=Nairobi Liberia=Monrovia
Libya=Tripoli Madagascar=Antananarivo Malawi=Lilongwe Mali=Bamako Mauritania=Nouakchott Morocco=Rabat Mozambique=Maputo
Namibia=Windhoek Niger=Niamey Nigeria=Abuja Rwanda=Kigali Senegal=Dakar Somalia=Mogadishu South_Africa=Pretoria
Sudan=Khartoum Tanzania=Dodoma Togo=Lome Tunisia=Tunis Uganda=Kampala Zambia=Lusaka Zimbabwe=Harare
North_America: Bahamas=Nassau Barbados=Bridgetown Belize=Belmopan Canada=Ottawa Costa_Rica=San_Jose Cuba=Havana
Dominican_Republic=Santo_Domingo Guatemala=Guatemala_City Haiti=Port-au-Prince Honduras=Tegucigalpa Jamaica=Kingston
Mexico=Mexico_City Nicaragua=Managua Panama=Panama_City United_States=Washington
South_America: Argentina=Buenos_Aires Bolivia=Sucre Brazil=Brasilia Chile=Santiago Colombia=Bogota Ecuador=Quito
Guyana=Georgetown Paraguay=Asuncion Peru=Lima Suriname=Paramaribo Uruguay=Montevideo Venezuela=Caracas
Oceania: Australia=Canberra Fiji=Suva New_Zealand=Wellington Samoa=Apia Tonga=Nuku'alofa
"""

_LANGUAGES = """Albania=Albanian Austria=German Brazil=Portuguese Bulgaria=Bulgarian China=Chinese Croatia=Croatian
Cuba=Spanish Czechia=Czech Denmark=Danish Egypt=Arabic England=English Estonia=Estonian Finland=Finnish France=French
Germany=German Greece=Greek Hungary=Hungarian Iceland=Icelandic Iran=Persian Iraq=Arabic Israel=Hebrew Italy=Italian
Japan=Japanese Latvia=Latvian Lithuania=Lithuanian Mexico=Spanish Mongolia=Mongolian Netherlands=Dutch
Norway=Norwegian Peru=Spanish Poland=Polish Portugal=Portuguese Romania=Romanian Russia=Russian Serbia=Serbian
Slovakia=Slovak Slovenia=Slovene South_Korea=Korean Spain=Spanish Sweden=Swedish Thailand=Thai Turkey=Turkish
Ukraine=Ukrainian Vietnam=Vietnamese Argentina=Spanish Chile=Spanish Australia=English Jamaica=English"""

_WITH_ARTICLE = {
    "Netherlands",
    "United Kingdom",
    "United States",
    "Philippines",
    "Bahamas",
    "Gambia",
    "Dominican Republic",
}


def _pairs(text: str) -> dict[str, str]:
    return {k.replace("_", " "): v.replace("_", " ") for k, v in (item.split("=") for item in text.split())}


def article(country: str) -> str:
    """The country as it stands in a sentence ("the Netherlands")."""
    return f"the {country}" if country in _WITH_ARTICLE else country


def _read() -> tuple[dict[str, str], dict[str, str]]:
    capitals: dict[str, str] = {}
    continents: dict[str, str] = {}
    for block in _TABLE.strip().replace("\n", " ").split(": ")[1:]:
        # The last word of a block is the name of the next continent.
        capitals.update(_pairs(" ".join(w for w in block.split() if "=" in w)))
    name = ""
    for word in _TABLE.split():
        if word.endswith(":"):
            name = word[:-1].replace("_", " ")
        else:
            continents[word.split("=")[0].replace("_", " ")] = name
    return capitals, continents


CAPITALS, CONTINENTS = _read()
LANGUAGES = _pairs(_LANGUAGES)
SHARED_CAPITALS = {"London"}
