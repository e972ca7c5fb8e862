#!/usr/bin/env python3
"""Synthetic documents about invented things, and chats that ask about them.

Every sample is a dict:
    system      text of the system message, or None for the constant one
    documents   [{"title": ..., "text": ...}, ...]
    turns       [{"question", "answer", "kind", "chance", "entity", "relation"}, ...]
    facts       {(entity, relation): value}, all that the documents state

kind is "answer" (the documents say it), "unknown" (they do not) or "talk" (small
talk). chance is the probability of naming the right value when one knows the
asked relation but picks the document blindly; train.py prints it beside the
accuracy, because a model that ignores entities reaches exactly that level.

Words are split by a hash into a training part and a held-out part: no name and
no number of the evaluation ever occurs in training.

Run as a program it prints samples as JSON lines:
    generate_data.py --count 3 --mode full --seed 7 [--held-out]
"""
import argparse
import json
import random
import zlib

SYSTEM_DEFAULT = "Answer from the documents. If they do not say, answer: I don't know."
UNKNOWN = "I don't know."

# Some users bring their own system message; the model must not depend on the constant one.
SYSTEM_OTHER = [
    "You are a helpful assistant.",
    "Answer briefly.",
    "You answer questions about the documents.",
    "Use only the documents. Be short.",
    "You are a librarian. Answer from the records below.",
]

_ONSETS = ["b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z",
           "br", "dr", "gr", "kr", "pr", "tr", "st", "sk", "pl", "fl", "gl", "sh", "th"]
_VOWELS = ["a", "e", "i", "o", "u"]
_CODAS = ["", "n", "r", "l", "s", "m", "k", "t"]

ALL_SYLLABLES = [o + v + c for o in _ONSETS for v in _VOWELS for c in _CODAS]

# The common inventory is small, so that its syllables become single tokens and the first token of a
# name tells it apart. A share of the names uses all syllables, so that the model also copies rarer
# pieces.
_inventory = random.Random(2026)
FIRST_SYLLABLES = _inventory.sample(ALL_SYLLABLES, 240)
NEXT_SYLLABLES = _inventory.sample([s for s in ALL_SYLLABLES if len(s) <= 3], 160)

# relation -> (fact phrasings, question phrasings) of its own, beside the general ones below
NAME_RELATIONS = {
    "owner": (["{e} is owned by {v}.", "The one who owns {e} is {v}."],
              ["Who owns {e}?", "Who is the owner of {e}?"]),
    "founder": (["{e} was founded by {v}."], ["Who founded {e}?", "Who is the founder of {e}?"]),
    "captain": (["{e} is commanded by captain {v}."],
                ["Who is the captain of {e}?", "Who commands {e}?"]),
    "builder": (["{e} was built by {v}."], ["Who built {e}?", "Who is the builder of {e}?"]),
    "ruler": (["{e} is ruled by {v}."], ["Who rules {e}?", "Who is the ruler of {e}?"]),
    "keeper": (["{e} is kept by {v}."], ["Who keeps {e}?", "Who is the keeper of {e}?"]),
    "teacher": (["{e} was taught by {v}."], ["Who taught {e}?", "Who is the teacher of {e}?"]),
    "rival": (["{e} has a rival called {v}."], ["Who is the rival of {e}?"]),
    "capital": (["{e} has a capital called {v}."], ["Which city is the capital of {e}?"]),
    "river": (["{e} lies on the river {v}."], ["On which river does {e} lie?"]),
    "emblem": (["{e} bears the emblem {v}."], ["Which emblem does {e} bear?"]),
    "metal": (["{e} is made of the metal {v}."], ["Of which metal is {e} made?"]),
    "harbor": (["{e} has a harbor called {v}."], ["Which harbor does {e} have?"]),
    "festival": (["{e} holds the festival {v}."], ["Which festival does {e} hold?"]),
    "color": (["{e} is painted in the color {v}."],
              ["Which color does {e} have?", "What color is {e}?"]),
    "password": (["{e} opens with the password {v}."], ["Which password opens {e}?"]),
}
NUMBER_RELATIONS = {
    "height": (["{e} has a height of {v}."], ["How tall is {e}?", "How high is {e}?"]),
    "weight": (["{e} weighs {v}."], ["How heavy is {e}?", "How much does {e} weigh?"]),
    "price": (["{e} costs {v}.", "{e} has a price of {v}."], ["How much does {e} cost?"]),
    "length": (["{e} has a length of {v}."], ["How long is {e}?"]),
    "depth": (["{e} has a depth of {v}."], ["How deep is {e}?"]),
    "age": (["{e} has an age of {v}."], ["How old is {e}?"]),
    "speed": (["{e} reaches a speed of {v}."], ["How fast is {e}?"]),
    "population": (["{e} has a population of {v}."], ["How many people live in {e}?"]),
    "code": (["{e} carries the code {v}."], ["Which code does {e} carry?"]),
    "year": (["{e} dates from the year {v}."], ["From which year is {e}?"]),
}
RELATIONS = sorted(NAME_RELATIONS) + sorted(NUMBER_RELATIONS)
KINDS = ["village", "ship", "machine", "tower", "island", "bridge", "mill", "engine", "castle",
         "forest", "mine", "lamp"]

# Entity and relation always come before the value, because a causal model does not see later words
# when it computes the KV of the value.
FACTS = ["The {r} of {e} is {v}.", "{e}'s {r} is {v}.", "{e} has the {r} {v}.",
         "For {e}, the {r} is {v}.", "As for {e}, its {r} is {v}.",
         "It is known that the {r} of {e} is {v}.", "In the case of {e} the {r} is {v}."]
QUESTIONS = ["What is the {r} of {e}?", "What is {e}'s {r}?", "Tell me the {r} of {e}.",
             "Which {r} does {e} have?", "Please name the {r} of {e}.", "What is the {r} of {e}",
             "I would like to know the {r} of {e}.",
             "Do you know the {r} of {e}?", "what is the {r} of {e}?"]
FOLLOW_SAME_ENTITY = ["And its {r}?", "And the {r}?", "What is its {r}?"]
FOLLOW_NEW_ENTITY = ["And of {e}?", "And {e}?", "What about {e}?"]
FILLERS = ["{e} is a {k}.", "Many people have heard of {e}.", "{e} is an old {k}.",
           "This note is about {e}.",
           "Little else is written about {e}.", "{e} was described in an old book."]
TITLES = ["{e}", "About {e}", "The {k} {e}", "Notes on {e}"]

WHO = "I am the small demo model of Tarn. I answer questions from the documents you send."
TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hello there", "Good morning", "Good evening", "hello",
      "hi"],
     "Hello! " + WHO),
    (["Who are you?", "What are you?", "What is your name?", "Are you a model?", "who are you?"],
     WHO),
    (["What can you do?", "Help", "help", "How do I use you?", "How does this work?"],
     "Send documents and ask about them. If they do not say, I answer: I don't know."),
    (["Thanks", "Thank you", "Thank you!", "Thanks!", "Great, thanks."], "You are welcome."),
    (["Bye", "Goodbye", "Bye!", "See you."], "Goodbye."),
    (["How are you?", "How are you today?"], "I am well. Ask me about the documents."),
]


def is_held_out(word):
    """Whether a name or number is for the evaluation only; an eighth of all words is."""
    return zlib.crc32(word.lower().encode()) % 8 == 0


def make_name(rng, held_out, wild):
    while True:
        if rng.random() < wild:
            parts = [rng.choice(ALL_SYLLABLES) for _ in range(rng.choice((2, 2, 3)))]
        else:
            parts = [rng.choice(FIRST_SYLLABLES)]
            parts += [rng.choice(NEXT_SYLLABLES) for _ in range(rng.choice((1, 1, 2)))]
        name = "".join(parts)
        if is_held_out(name) == held_out:
            return name[0].upper() + name[1:]


def make_number(rng, held_out):
    while True:
        digits = rng.choice((3, 3, 4, 5))
        number = str(rng.randrange(10 ** (digits - 1), 10 ** digits))
        if is_held_out(number) == held_out:
            return number


class Writer:
    """Draw samples. level sets the phrasings: 0 two of each kind, 1 all general ones, 2 also those
    of single relations, several forms of titles, and filler sentences."""

    def __init__(self, seed, held_out=False, wild=0.15):
        self.rng = random.Random(seed)
        self.held_out = held_out
        self.wild = wild

    def name(self, used):
        while True:
            name = make_name(self.rng, self.held_out, self.wild)
            if name not in used:
                used.add(name)
                return name

    def value(self, relation, used):
        if relation in NAME_RELATIONS:
            return self.name(used)
        while True:
            number = make_number(self.rng, self.held_out)
            if number not in used:
                used.add(number)
                return number

    def fact(self, relation, entity, value, level):
        phrasings = FACTS[:2] if level == 0 else FACTS
        if level == 2 and self.rng.random() < 0.35:
            phrasings = (NAME_RELATIONS.get(relation) or NUMBER_RELATIONS[relation])[0]
        return self.rng.choice(phrasings).format(r=relation, e=entity, v=value)

    def question(self, relation, entity, level):
        phrasings = QUESTIONS[:2] if level == 0 else QUESTIONS
        if level == 2 and self.rng.random() < 0.35:
            phrasings = (NAME_RELATIONS.get(relation) or NUMBER_RELATIONS[relation])[1]
        return self.rng.choice(phrasings).format(r=relation, e=entity)

    def document(self, entity, facts, level):
        kind = self.rng.choice(KINDS)
        sentences = [self.fact(r, entity, v, level) for r, v in facts]
        title = entity
        if level == 2:
            title = (self.rng.choice(TITLES).format(e=entity, k=kind)
                     if self.rng.random() < 0.5 else entity)
            for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
                filler = self.rng.choice(FILLERS).format(e=entity, k=kind)
                sentences.insert(self.rng.randint(0, len(sentences)), filler)
        return {"title": title, "text": " ".join(sentences)}

    def talk(self):
        questions, answer = self.rng.choice(TALK if self.rng.random() < 0.6 else TALK[:2])
        return {"question": self.rng.choice(questions), "answer": answer, "kind": "talk",
                "chance": 0.0}

    def sample(self, mode, level, documents=None, turns=None, unknown=0.0, follow=0.0, talk=0.0):
        """mode "entity": every document states the same one relation, only the entity decides.
        mode "relation": one document, only the relation decides.
        mode "both": documents of several facts, mostly about the same relations.
        mode "full": any number of documents from 0 to 6, each with any facts."""
        rng = self.rng
        used = set()
        if mode == "entity":
            count, pool, fact_range = rng.randint(2, 6), rng.sample(RELATIONS, 1), (1, 1)
        elif mode == "relation":
            count, pool, fact_range = 1, rng.sample(RELATIONS, 5), (3, 5)
        elif mode == "both":
            count, pool, fact_range = rng.randint(2, 4), rng.sample(RELATIONS, 4), (2, 4)
        else:
            count = rng.choice((0, 1, 1, 2, 3, 3, 4, 5, 6))
            pool, fact_range = rng.sample(RELATIONS, 6), (1, 4)
        if documents is not None:
            count = documents
        texts, known, entities = [], {}, []
        for _ in range(count):
            entity = self.name(used)
            entities.append(entity)
            source = RELATIONS if mode == "full" and rng.random() < 0.2 else pool
            relations = rng.sample(source, rng.randint(*fact_range))
            facts = [(r, self.value(r, used)) for r in relations]
            known.update({(entity, r): v for r, v in facts})
            texts.append(self.document(entity, facts, level))
        stated = {}
        for _, relation in known:
            stated[relation] = stated.get(relation, 0) + 1
        wanted = turns if turns is not None else rng.randint(3, 8)
        open_facts = list(known)
        rng.shuffle(open_facts)
        out, asked, last = [], set(), None
        while len(out) < wanted:
            if rng.random() < talk:
                out.append(self.talk())
                last = None
                continue
            if not open_facts and out and (unknown == 0.0 or rng.random() < 0.5):
                break
            if not open_facts or rng.random() < unknown:
                pair = self.unknown_pair(entities, known, pool, used, asked)
                if pair is None:
                    break
            else:
                pair = open_facts.pop()
            entity, relation = pair
            asked.add(pair)
            question = self.question(relation, entity, level)
            if last is not None and rng.random() < follow:
                # A follow-up question omits the entity or the relation, which is that of the turn
                # before.
                if last[0] == entity:
                    question = rng.choice(FOLLOW_SAME_ENTITY).format(r=relation)
                elif last[1] == relation:
                    question = rng.choice(FOLLOW_NEW_ENTITY).format(e=entity)
            last = pair
            if pair in known:
                out.append({"question": question, "answer": known[pair] + ".", "kind": "answer",
                            "chance": 1.0 / stated[relation], "entity": entity,
                            "relation": relation})
            else:
                out.append({"question": question, "answer": UNKNOWN, "kind": "unknown",
                            "chance": 0.0, "entity": entity, "relation": relation})
            if follow and rng.random() < follow:
                # Move a fact with the same entity or relation to the front, so that follow-ups are
                # possible.
                for i, other in enumerate(open_facts):
                    if (other[0] == entity) != (other[1] == relation):
                        open_facts.append(open_facts.pop(i))
                        break
        system = rng.choice(SYSTEM_OTHER) if level == 2 and rng.random() < 0.1 else None
        return {"system": system, "documents": texts, "turns": out, "facts": known}

    def unknown_pair(self, entities, known, pool, used, asked):
        """A question that the documents do not answer: about an entity or a relation that they
        lack. The relation is mostly one of another document's facts, so that its presence alone
        does not show whether there is an answer."""
        rng = self.rng
        stated = [r for _, r in known] or pool
        for _ in range(20):
            relation = rng.choice(stated) if rng.random() < 0.7 else rng.choice(RELATIONS)
            entity = self.name(used) if not entities or rng.random() < 0.5 else rng.choice(entities)
            if (entity, relation) not in known and (entity, relation) not in asked:
                return entity, relation
        return None


def main():
    parser = argparse.ArgumentParser(description="print samples as JSON lines")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=("entity", "relation", "both", "full"), default="full")
    parser.add_argument("--level", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--documents", type=int, default=None)
    parser.add_argument("--held-out", action="store_true")
    args = parser.parse_args()
    writer = Writer(args.seed, held_out=args.held_out)
    for _ in range(args.count):
        sample = writer.sample(args.mode, args.level, documents=args.documents, unknown=0.25,
                               follow=0.3, talk=0.04)
        sample["facts"] = [[e, r, v] for (e, r), v in sample["facts"].items()]
        print(json.dumps(sample))


if __name__ == "__main__":
    main()
