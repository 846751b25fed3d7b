"""Read author and time off a bare text: `[12 May 2024] Ann: I moved to Bern`.

Rule 1: the text is kept as it is. Only what stands at its beginning is read.
Rule 2: nothing is guessed. A date that could be read in two ways, or that is not over yet, is no
time. A name before a colon is an author only with a sign that somebody speaks: a time of day in
front of it, notes of that author that are here already, or, if it is a usual given name, a date in
brackets in front or a word such as `I` or `you` behind.
Rule 3: what was read off is marked in the note (`Note.read_off`), and never replaces what the
caller said.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

# What a text may begin with, up to this number of characters.
_HEAD_CHARS_MAX = 200
_NAME_CHARS_MAX = 40
_YEAR_MIN = 1970
# A time without a zone may be up to 14 hours ahead of UTC.
_AHEAD_MS = 14 * 3_600_000

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})"
_ORDINAL = rf"{_DAY}(?:st|nd|rd|th)?"
_WEEKDAY = (
    r"(?:(?:mon|tue(?:s)?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?[ ])?"
)  # fmt: skip
# No date: `1.2.2024.3`, `12/05/24/7`.
_ENDS = r"(?![\w/]|[.-]\w)"
_DATES = tuple(
    re.compile(rf"{_WEEKDAY}{form}", re.IGNORECASE | re.ASCII)
    for form in (
        r"(?P<year>\d{4})(?P<mark>[-/.])(?P<number>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
        r"(?=T\d|[ ,:)\]|\n]|$)",
        rf"{_ORDINAL}(?: of)?[ -]{_MONTH},?[ -](?P<year>\d{{4}}){_ENDS}",
        rf"{_MONTH} {_ORDINAL},? (?P<year>\d{{4}}){_ENDS}",
        rf"(?P<day>\d{{1,2}})\.(?P<number>\d{{1,2}})\.(?P<year>\d{{4}}|\d{{2}}){_ENDS}",
        rf"(?P<either>\d{{1,2}})/(?P<other>\d{{1,2}})/(?P<year>\d{{4}}|\d{{2}}){_ENDS}",
    )
)
# `On May 3rd, we met`: the year may be missing.
_ON = tuple(
    re.compile(rf"on {_WEEKDAY}{form}", re.IGNORECASE | re.ASCII)
    for form in (
        rf"(?:the )?{_ORDINAL}(?: of)? {_MONTH}(?:,? (?P<year>\d{{4}}))?\b",
        rf"{_MONTH} {_ORDINAL}(?:,? (?P<year>\d{{4}}))?\b",
        r"(?P<year>\d{4})-(?P<number>\d{2})-(?P<day>\d{2})\b",
    )
)
_CLOCK = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d{1,9})?)?"
    r"(?:[ \u202f]?(?P<half>[ap])\.?m\b\.?)?(?: Uhr\b)?"
    r"(?P<zone> ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})(?!\w))?(?![\w:]|\.\d)",
    re.IGNORECASE | re.ASCII,
)
_BETWEEN = re.compile(r"T|,? (?:at )?|,", re.IGNORECASE)
_SEPARATOR = re.compile(r" ?: |:\n| [-\u2013\u2014|] |\n|, (?=[A-Z])")
# After a date without a separator: the date is what the sentence is about.
_ABOUT = frozenset(
    re.findall(
        r"\S+",
        "is was are were will would can could may might must shall should has had to till until "
        "through and or in at for of from by as - \u2013 works suits",
    )
)
_FUTURE = re.compile(
    r"\b(?:will|shall|going to|won't|'ll|next|every|each|tomorrow|upcoming|plan(?:s|ned)? to|"
    r"would|should|must|may|might|can|could|if|when|always|usually)\b",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:was|were|had|did|went|met|came|got|saw|said|told|took|made|bought|left|began|became|"
    r"wrote|found|gave|lost|won|ran|spoke|ate|drank|drove|flew|fell|felt|held|kept|knew|led|paid|"
    r"read|sang|sat|sent|slept|sold|spent|stood|swam|taught|thought|broke|brought|built|caught|"
    r"chose|heard|sold|rode|wore|grew|threw|\w{3,}ed)\b",
    re.IGNORECASE,
)

# Words in front of a colon that name a thing, a section or a level: no author, also after a time.
_LABELS = frozenset(
    re.findall(
        r"\w+",
        """
        a about action alert amount an and answer as attention august breakfast bug build but by
        call caution cc chapter client code comment config critical date day deadline dear debug
        december delivery diary dinner done draft entry error event example fact fail failed fatal
        feature february figure fix flight for friday from goal guest he hello help her here hey
        hi hint his home host hotel how http https i idea if in info input issue it item its job
        journal july kernel key level like line link location log lunch mail march meeting memo
        message monday mood my name news next no not note notice notification november number
        october of office on or our output page password pid place plan point problem process
        project question re reason recipe reminder reply report request result review said
        saturday says scene secret section september server service she shopping so source start
        state status step stop subject summary sunday system table task temperature test thanks
        that the their then there these they this those thread thursday ticket time tip title to
        today todo tomorrow topic total trace trip tuesday update user value version wait warn
        warning we weather wednesday what when where which who why with work yes you your
        """,
    )
)
# Given names and words for parents, as many languages write them. Of `Coffee: I had three` and
# `Ann: I had three`, only such a list can tell which one is said by somebody.
_GIVEN_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
        aaron abby abdul abdullah abigail adam adele adrian adriana agnes ahmad ahmed aidan aisha
        akira alan albert alberto alejandra alejandro alessandra alessandro alex alexander
        alexandra alexei alexis alfred ali alice alicia alina alison allison alma alvin alyssa
        amanda amara amber amelia amin amina amir amit amy ana anastasia anders andrea andreas
        andrei andrew andy angela angelina angelo anika anita anja anjali ann anna annabel anne
        annette annie anthony antoine anton antonia antonio anya archie ariana ariel arjun arnold
        arthur arturo arun asha ashley astrid audrey aurora ava axel ayesha barbara beatrice
        beatriz becky bella ben benedict benjamin bernard bernd bernice bert beth bethany betty
        beverly bill billy birgit bjorn bob bobby boris brad bradley brandon brenda brendan brian
        bridget britta brittany bruce bruno bryan caleb calvin camila camille carl carla carlos
        carmen carol caroline carolyn carrie carsten casey cassandra catherine cathy cecilia
        cedric celia celine chad chandra charles charlie charlotte chen chiara chloe chris
        christian christina christine christoph christopher cindy claire clara clarence claude
        claudia clemens clement colette colin connie connor conrad constance cora corinna corinne
        courtney craig cristina crystal curtis cynthia dad daisuke damian damien dan dana daniel
        daniela danielle danny daphne darren dave david debbie deborah deepak denis denise dennis
        derek desmond devon diana diane diego dieter dimitri dirk dmitri dolores dominic dominik
        dominique donald donna doris dorothy doug douglas duncan dustin dylan earl eddie edgar
        edith edmund eduardo edward edwin eileen elaine elena elias elijah elisa elisabeth elise
        eliza elizabeth ella ellen ellie elliot eloise elsa elsie emil emilia emilio emily emma
        enrico enrique eric erica erich erik erika erin ernest ernesto ernst esteban esther ethan
        eugene eva evan eve evelyn fabian fatima fatma federica federico felicia felicity felipe
        felix fernanda fernando fiona florence florian frances francesca francesco francis
        francisco frank franz fred freddie frederic frederick frederik freya friedrich fritz
        gabriel gabriela gabriele gareth gary gavin geoffrey george georgia georgina gerald gerard
        gerd gerhard gianluca gilbert giles gina giorgio giovanna giovanni gisela giulia giuseppe
        gladys glenn gloria gordon graham grandma grandpa greg gregor gregory greta guido
        guillaume gunnar gunther gustav guy gwen hamza hannah hannes hans harald harold harriet
        harry harvey hassan heather hector heidi heike heinrich heinz helen helena helene helga
        helmut hendrik henri henry herbert hermann hilary hilda hiroshi holger holly horst howard
        hugh hugo ian ibrahim ida igor ike ilse imran ines inga inge ingrid irene irina iris isaac
        isabel isabella isla ismail ivan ivana ivy jack jackie jackson jacob jacqueline jacques
        jaime jake jakob jamal james jamie jan jana jane janet janice janine jared jasmin jasmine
        jason javier jay jean jeanne jeff jeffrey jelena jen jenna jennifer jenny jens jeremy
        jerome jerry jesse jessica jesus jill jim jimmy joan joana joann joanna joanne joao jochen
        jodie joe joel joerg johan johanna johannes john johnny jolene jon jonas jonathan jordan
        jorge jose josef joseph josephine josh joshua joy joyce juan juana juanita jude judith
        judy juergen julia julian juliana julie juliet julio julius jun justin justine jutta kai
        kaitlyn kamal kara karen karim karin karina karl karla kate katharina katherine kathleen
        kathryn kathy katie katja katrin kay kayla keiko keith kelly ken kendra kenji kenneth
        kenny kenta kerstin kevin khalid kim kimberly kirsten kirsty klara klaus konrad kristen
        kristin kristina kumar kurt kyle lara larissa larry lars latisha laura lauren laurence
        laurent lea leah leila lena lenny leo leon leona leonard leonardo leonie leslie lewis li
        liam lily linda lindsay ling lisa liz lizzie lloyd logan lois lola lorena lorenzo loretta
        lori lothar louis louisa louise luc luca lucas lucia luciana lucie lucy ludwig luigi luis
        luisa lukas luke lydia lynn mabel madeleine madison maggie mahmoud malcolm malik manfred
        manuel manuela mara marc marcel marcela marcia marco marcos marcus margaret margarita
        margot maria mariam marian mariana marianne marie marina mario marion marissa marjorie
        markus marlene marta martha martin martina marvin mary maryam masha mateo mathias mathilde
        matilda matt matteo matthew matthias maureen maurice max maxim maximilian maya mei melanie
        melinda melissa mia michael michaela michel michelle miguel mike mikhail mila milan
        mildred milena milo ming miranda miriam mitchell mohamed mohammad mohammed moira molly mom
        mona monica monika monique morgan moritz moses muhammad mum muriel myriam nadia nadine
        nancy naomi natalia natalie natasha nate nathalie nathan nathaniel neha neil nelson nia
        nicholas nick nico nicola nicolas nicole nigel nikita nikolai nils nina noah noel noelle
        noemi nora norbert norma norman nuria oleg olga oliver olivia olivier omar oscar oskar
        otto owen pablo pamela paola paolo pascal pat patricia patrick patrizia paul paula paulina
        pauline paulo pedro penelope penny percy pete peter petra phil philip philipp philippe
        phillip phoebe pia pierre pietro pilar piotr polly preeti priya rachel rafael rahul rainer
        raj rajesh ralf ralph ramon randy raphael rashid raul ravi ray raymond rebecca regina
        reiner renate rene reza rhonda ricardo riccardo richard rick ricky rita rob robert roberta
        roberto robin rodrigo roger rohan roland rolf roman ron ronald ronnie rosa rosalie rosanna
        rosemary rosie ross roxanne roy ruben rudolf rudy rupert russell ruth ryan sabine sabrina
        sadia sally salma sam samantha samir samira samuel sandra sandy sanjay santiago sara sarah
        sasha saskia scott sean sebastian selina serena sergei sergio shane shannon sharon shawn
        sheila shelley sherry shirley sibylle sidney siegfried sigrid silke silvia simon simone
        sofia sonia sonja sophia sophie stacey stan stanley stefan stefanie stefano stella stephan
        stephanie stephen steve steven stewart stuart sue sunita susan susanna susanne susie
        suzanne sven svetlana sylvia takashi tamara tanja tanya tara tatiana ted terence teresa
        terry tessa theo theodor theodore theresa therese thomas thorsten tiffany tim timo timothy
        tina tobias todd tom tomas tommy toni tony torsten tracy travis trevor tricia tristan troy
        tyler udo ulf ulrich ulrike uma ursula ute uwe valentina valeria valerie vanessa vera
        verena veronica veronika vicky victor victoria viktor vincent viola violet virginia vivian
        vivienne vladimir volker walter wanda wayne wei wendy werner wilfred wilhelm will willem
        william willy winston wolfgang xavier yan yasmin yolanda yuki yuri yusuf yvette yvonne
        zachary zahra zara zoe
        """,
    )
)
_TITLES = frozenset({"dr", "frau", "herr", "miss", "mme", "mr", "mrs", "ms", "prof", "professor"})
# Words of somebody who speaks.
_SPOKEN = re.compile(
    r"\b(?:I|I['\u2019](?:m|ve|d|ll)|me|my|mine|myself|we(?:['\u2019](?:re|ve|d|ll))?|us|our|ours|"
    r"you(?:['\u2019](?:re|ve|d|ll))?|your|yours|hi|hey|hello|yeah|yep|nope|wow|thanks|thx|lol|"
    r"haha|congrats|bye|goodbye)\b|\?\s*$",
)
_SPOKEN_ANY_CASE = re.compile(_SPOKEN.pattern, re.IGNORECASE)
_NAME_WORD = r"[^\W\d_](?:[^\W\d_]|['\u2019.-](?=[^\W\d_])){0,24}\.?"
_NAMED = re.compile(
    rf"(?:\*\*)?(?P<name>{_NAME_WORD}(?: {_NAME_WORD}){{0,3}})(?:\*\*)?:(?:\*\*)?(?=\s+\S)"
)
# Who wrote in chat exports: a name, a nickname or a number.
_EXPORTED = re.compile(r"- (?P<name>[^:\n<>]{1,40}): (?=\S)")
_NICKNAME = re.compile(r"<[ @+~&%]?(?P<name>[^\s<>:][^<>:\n]{0,39})> (?=\S)")
# The first line of a message that was copied out of a chat: `Ann Smith  10:31 AM`.
_FIRST_LINE = re.compile(
    rf"(?P<name>{_NAME_WORD}(?: {_NAME_WORD}){{0,3}})(?: [-\u2013\u2014] |,? )(?P<rest>.*\d.*)$"
)
_NUMBER = re.compile(r"\+?[\d ()-]{6,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOff:
    """The author and the time that a text begins with; each is None if it does not say it.

    `at` is in milliseconds since 1970. A time without a zone is taken as UTC.
    """

    author: str | None = None
    at: int | None = None


def read_off(text: str, *, now: int, known: Callable[[str], bool] = lambda _: False) -> ReadOff:
    """Return the author and the time that stand at the beginning of a text.

    `now` is the time of keeping, in milliseconds: no later one is returned. `known` says if there
    are notes of an author already; then `Ann: the ferry leaves at nine` needs no other sign.
    """
    head = text[:_HEAD_CHARS_MAX].lstrip()
    if copied := _copied(head, text, now):
        return copied
    stamp = _stamp(head)
    if stamp is None:
        return ReadOff(author=_speaker(head, text, known, stamp=None), at=_day_of_story(head, now))
    rest = head[stamp.end :]
    author = _author_after(rest, text, known, stamp)
    if stamp.date is None:
        return ReadOff(author=author)
    if author is None and not _stands_apart(rest, stamp):
        return ReadOff()
    return ReadOff(author=author, at=_moment(stamp, now))


# -- times -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """A date, a time of day or both, as a text begins with them, and where they end.

    `date` is None without a date, or if it can be read in two ways.
    """

    date: datetime.date | None
    clock: datetime.time | None
    zone: datetime.tzinfo
    bracket: bool
    end: int


def _stamp(head: str) -> _Stamp | None:
    """Return the date or the time of day that a text begins with, or None."""
    at, closing = 0, ""
    if head[:1] in ("[", "("):
        at, closing = 1, "]" if head[0] == "[" else ")"
    read = _date_and_clock(head, at)
    if read is None:
        return None
    date, clock, zone, end = read
    if closing:
        if head[end : end + 1] != closing:
            return None
        end += 1
    return _Stamp(date=date, clock=clock, zone=zone, bracket=bool(closing), end=end)


def _date_and_clock(
    head: str, at: int
) -> tuple[datetime.date | None, datetime.time | None, datetime.tzinfo, int] | None:
    """Return date, time of day, zone and the end; None if there is neither date nor time of day.

    None also if the time of day cannot be. The date is None if it has two readings.
    The time may stand before or after the date: `1:56 pm on 8 May, 2023`.
    """
    zone: datetime.tzinfo = datetime.UTC
    first = _CLOCK.match(head, at)
    if first is not None:
        clock = _clock(first)
        if clock is None:
            return None
        between = re.compile(r",? (?:on )?").match(head, first.end())
        day = None if between is None else _date(head, between.end())
        if day is None:
            return None, clock, _zone(first), first.end()
        return day[0], clock, _zone(first), day[1]
    day = _date(head, at)
    if day is None:
        return None
    date, end = day
    between = _BETWEEN.match(head, end)
    found = None if between is None else _CLOCK.match(head, between.end())
    if found is None:
        return date, None, zone, end
    clock = _clock(found)
    if clock is None:
        return None
    return date, clock, _zone(found), found.end()


def _date(head: str, at: int) -> tuple[datetime.date | None, int] | None:
    """Return the date at a place, and where it ends. The date is None if it has two readings."""
    for form in _DATES:
        if found := form.match(head, at):
            try:
                return _date_of(found.groupdict()), found.end()
            except ValueError:
                return None
    return None


def _date_of(parts: dict[str, str | None]) -> datetime.date | None:
    """Return the date of the parts of a match; None if day and month cannot be told apart.

    Raise `ValueError` if there is no such day.
    """
    year = int(parts.get("year") or 0)
    if len(parts.get("year") or "") == len("24"):
        year += 2000
    if parts.get("either"):
        one, two = int(parts["either"] or 0), int(parts["other"] or 0)
        if one == two:
            return datetime.date(year, one, two)
        if one > len(_MONTHS):
            return datetime.date(year, two, one)
        return datetime.date(year, one, two) if two > len(_MONTHS) else None
    return datetime.date(year, _month_of(parts), int(parts["day"] or 0))


def _month_of(parts: dict[str, str | None]) -> int:
    if number := parts.get("number"):
        return int(number)
    begins = (parts.get("month") or "").lower()[:3]
    return next(at for at, name in enumerate(_MONTHS, 1) if name.startswith(begins))


def _clock(found: re.Match[str]) -> datetime.time | None:
    """Return the time of day of a match, or None if there is no such time."""
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"] or 0)
    if found["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found["half"].lower() == "p" else 0)
    try:
        return datetime.time(hour, minute, second)
    except ValueError:
        return None


def _zone(found: re.Match[str]) -> datetime.tzinfo:
    said = (found["zone"] or "").strip()
    if said[:1] not in ("+", "-"):
        return datetime.UTC
    ahead = datetime.timedelta(hours=int(said[1:3]), minutes=int(said[-2:]))
    try:
        return datetime.timezone(-ahead if said[0] == "-" else ahead)
    except ValueError:
        return datetime.UTC


def _moment(stamp: _Stamp, now: int) -> int | None:
    """Return a stamp as milliseconds; None before 1970 or after the present time.

    A time that is later than now by a zone at most is now.
    """
    assert stamp.date is not None
    if stamp.date.year < _YEAR_MIN:
        return None
    clock = stamp.clock or datetime.time()
    moment = datetime.datetime.combine(stamp.date, clock, tzinfo=stamp.zone)
    at = int(moment.timestamp()) * 1000
    if at < 0 or at > now + _AHEAD_MS:
        return None
    return min(at, now)


def _stands_apart(rest: str, stamp: _Stamp) -> bool:
    """Return True if a date at the beginning is a heading, and not part of a sentence."""
    separator = _SEPARATOR.match(rest)
    if separator is not None:
        behind = rest[separator.end() :].lstrip()
        # `12 May 2024 - 14 May 2024`: a span of days.
        return bool(behind) and not (
            separator[0].strip() in "-\u2013\u2014" and behind[0].isdigit()
        )
    if not (stamp.bracket or stamp.clock):
        return False
    following = rest.split(None, 1)[:1]
    return bool(following) and rest[:1].isspace() and following[0].lower() not in _ABOUT


def _day_of_story(head: str, now: int) -> int | None:
    """Return the day of `On May 3rd, we met`, at its beginning; None if it may lie ahead.

    Without a year it is the last such day, and the sentence has to tell of the past.
    """
    for form in _ON:
        found = form.match(head)
        if found is None:
            continue
        told = re.split(r"[.!?\n]", head[found.end() :], maxsplit=1)[0]
        if _FUTURE.search(told) or not told.strip(" ,:"):
            return None
        parts = found.groupdict()
        try:
            if parts.get("year"):
                day = _date_of(parts)
            else:
                day = _last_such_day(parts, now) if _PAST.search(told) else None
        except ValueError:
            return None
        if day is None:
            return None
        stamp = _Stamp(date=day, clock=None, zone=datetime.UTC, bracket=False, end=found.end())
        return _moment(stamp, now)
    return None


def _last_such_day(parts: dict[str, str | None], now: int) -> datetime.date:
    """Return the last day of this name until now. Raise `ValueError` if there is no such day."""
    today = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).date()
    month, day = _month_of(parts), int(parts["day"] or 0)
    # 29 February comes again after 8 years at most.
    for year in range(today.year, today.year - 9, -1):
        try:
            found = datetime.date(year, month, day)
        except ValueError:
            continue
        if found <= today:
            return found
    raise ValueError("no such day")


# -- authors -----------------------------------------------------------------------------------


def _author_after(rest: str, text: str, known: Callable[[str], bool], stamp: _Stamp) -> str | None:
    """Return the author behind a date or a time of day, or None."""
    behind = rest.lstrip(" ,")
    if stamp.clock is not None:
        if found := _EXPORTED.match(behind):
            return _exported_name(found["name"])
        if found := _NICKNAME.match(behind):
            return None if found["name"].lower() in _LABELS else str(found["name"])
    behind = behind.lstrip(" -\u2013\u2014|:\n")
    return _speaker(behind, text, known, stamp=stamp)


def _exported_name(name: str) -> str | None:
    """Return the name of a chat export, or None if it is a label or a sentence."""
    name = name.strip()
    if _NUMBER.fullmatch(name):
        return name
    return None if _is_label(name) or len(name.split()) > 4 else name


def _speaker(
    head: str, text: str, known: Callable[[str], bool], *, stamp: _Stamp | None
) -> str | None:
    """Return the author of `Ann: ...` if there is a sign that somebody speaks, or None."""
    found = _NAMED.match(head)
    if found is None:
        return None
    name = found["name"]
    if not _is_name(name) or _others_speak(text, name):
        return None
    if known(name) or (stamp is not None and stamp.clock is not None):
        return name
    if not _is_persons(name):
        return None
    if stamp is not None and stamp.bracket:
        return name
    said = head[found.end() :].lstrip()
    line = text[text.find(name) + len(name) :]
    spoken = _SPOKEN.search(line) or _SPOKEN_ANY_CASE.match(said)
    return name if spoken else None


def _is_persons(name: str) -> bool:
    """Return True if a name begins with a title, or if one of its words is a given name."""
    plain = unicodedata.normalize("NFD", name.lower())
    parts = re.findall(
        r"[^\W\d_]+", "".join(each for each in plain if each.isalnum() or each in " -.")
    )
    return bool(parts) and (parts[0] in _TITLES or not _GIVEN_NAMES.isdisjoint(parts))


def _is_name(name: str) -> bool:
    """Return True if a text can be a person's name: words with a capital, none of them a label."""
    if len(name) > _NAME_CHARS_MAX or _is_label(name):
        return False
    parts = name.split()
    # `TODO` and `FAQ` are no names; `J.` is part of one.
    shouted = any(len(part.strip(".")) > 1 and part.isupper() for part in parts)
    return not shouted and all(part[0].isupper() or not part[0].islower() for part in parts)


def _is_label(name: str) -> bool:
    words = re.findall(r"[^\W_]+", name.lower())
    return not words or any(word in _LABELS or word.removesuffix("s") in _LABELS for word in words)


def _others_speak(text: str, name: str) -> bool:
    """Return True if a later line begins with another name: then no one is the author of all."""
    for line in text.splitlines()[1:]:
        found = _NAMED.match(line.lstrip())
        if found is not None and found["name"] != name and _is_name(found["name"]):
            return True
    return False


def _copied(head: str, text: str, now: int) -> ReadOff | None:
    """Return author and time of a message whose first line has both, and nothing else.

    As in `Ann Smith  10:31 AM`, `Ann - 12 May 2024 10:31` and `Ann, [12.05.2024 10:31]`.
    """
    first, newline, said = head.partition("\n")
    found = _FIRST_LINE.match(" ".join(first.split()))
    if not newline or not said.strip() or found is None or not _is_name(found["name"]):
        return None
    rest = found["rest"].strip()
    stamp = _stamp(rest)
    if stamp is None or stamp.clock is None or rest[stamp.end :].strip():
        return None
    if _others_speak(text, found["name"]):
        return None
    return ReadOff(author=found["name"], at=None if stamp.date is None else _moment(stamp, now))
