#!/usr/bin/env python3
"""Writes a trace of conversations about pages, for `vlcache simulate`:

    studies/picture_trace.py --requests 2000 --pages 200 > pages.jsonl && vlcache simulate pages.jsonl --block 1 --page 64 --capacity 6000 --replicas 2

A conversation has one of a few system prompts and --turns turns. Its first turn brings a page, a later one brings another with probability --another;
pages are drawn by Zipf's law (the k-th with weight k^-s), --open conversations alternate at random. A line is a request with all that came before in its
conversation: {timestamp, session, input_length, output_length, hash_ids: [one per --block tokens; equal ids: equal content after an equal beginning],
images: [{id, tokens, at: the token where it begins}]}. Texts have the lengths of tinydoc's template, whose letters are a token each, so that
studies/load/replicas.py can send the same requests to servers. The same --seed gives the same trace.
Standard library alone."""
import argparse
import json
import random
import string
import sys

IMAGE_TOKENS = 256  # of tinydoc's pages
ANSWER = "A"        # the token that every answer consists of


class Conversation:
    """Messages of one conversation, as tokens of tinydoc's template: a token is a text, or (page, row)."""

    def __init__(self, number, system, n_turns):
        self.number, self.system, self.n_turns, self.turns, self.pages = number, system, n_turns, [], []

    def ask(self, pages, question, n_answer):
        """Begins a turn: its pages, the text of its question, and the tokens of its answer."""
        self.turns.append((pages, question, n_answer))
        self.pages += pages

    def done(self):
        return len(self.turns) == self.n_turns

    def tokens(self, image_tokens):
        """The prompt of the last turn, and where its images begin: [(page, token)]."""
        tokens, images = ["<s>"], []

        def said(text):
            tokens.extend(["A", "ssistant", ":", " ", *text, "</s>"])
        if self.system:
            said(self.system)
        for i, (pages, question, _) in enumerate(self.turns):
            if i > 0:
                said(ANSWER * self.turns[i - 1][2])
            tokens.extend(["U", "ser", ":", " "])
            for page in pages:
                images.append((page, len(tokens)))
                tokens.extend((page, row) for row in range(image_tokens))
                tokens.append("\n")
            tokens.extend([*question, "\n"])
        return tokens + ["A", "ssistant", ":"], images

    def messages(self, image_of):
        """The same for OpenAI's API; image_of(page): the part of a message that is the page."""
        found = [{"role": "system", "content": self.system}] if self.system else []
        for i, (pages, question, _) in enumerate(self.turns):
            if i > 0:
                found.append({"role": "assistant", "content": ANSWER * self.turns[i - 1][2]})
            found.append({"role": "user", "content": [*map(image_of, pages), {"type": "text", "text": question}]})
        return found


class Blocks:
    """Ids of blocks: equal for equal content after an equal beginning."""

    def __init__(self, n_tokens):
        self.n_tokens, self.known = n_tokens, {}

    def ids(self, tokens):
        found, before = [], None
        for i in range(0, len(tokens), self.n_tokens):
            before = self.known.setdefault((before, tuple(tokens[i:i + self.n_tokens])), len(self.known))
            found.append(before)
        return found


def text(r, lengths):
    """Capital letters, each of which is a token."""
    return "".join(r.choices(string.ascii_uppercase, k=r.randint(*lengths)))


def conversations(a):
    """Yields the conversation of each request, whose last turn is asked then."""
    r = random.Random(a.seed)
    systems = [text(r, a.system_tokens) for _ in range(a.systems)] or [""]
    weights = [(k + 1) ** -a.zipf for k in range(a.pages)]
    running, n_begun = [], 0
    for _ in range(a.requests):
        while len(running) < a.open:
            running.append(Conversation(n_begun, r.choice(systems), r.randint(*a.turns)))
            n_begun += 1
        one = r.choice(running)
        pages = []
        if (not one.turns or r.random() < a.another) and len(one.pages) < a.pages:
            while not pages or pages[0] in one.pages:
                pages = r.choices(range(a.pages), weights)
        one.ask(pages, text(r, a.question_tokens), r.randint(*a.answer_tokens))
        yield one
        if one.done():
            running.remove(one)


def trace(a):
    """Yields (line of the trace, conversation) for each request."""
    blocks, r, now = Blocks(a.block), random.Random(a.seed + 1), 0.0
    for one in conversations(a):
        tokens, images = one.tokens(a.image_tokens)
        yield {"timestamp": round(now), "session": one.number, "input_length": len(tokens), "output_length": one.turns[-1][2], "hash_ids": blocks.ids(tokens),
               "images": [{"id": page, "tokens": a.image_tokens, "at": at} for page, at in images]}, one
        now += 1000 * r.expovariate(a.rate)


def lengths(argument):
    """N, or N-M."""
    low, _, high = argument.partition("-")
    if not 0 < int(low) <= int(high or low):
        raise ValueError(argument)
    return int(low), int(high or low)


def add_flags(parser):
    add = parser.add_argument
    add("--requests", type=int, default=200)
    add("--pages", type=int, default=40, help="different pages")
    add("--zipf", type=float, default=0.7, help="exponent of the pages' popularity; 0: all alike")
    add("--systems", type=int, default=7, help="different system prompts; 0: none")
    add("--turns", type=lengths, default=(2, 8), help="of a conversation: N or N-M")
    add("--another", type=float, default=0.2, help="probability that a later turn brings another page")
    add("--open", type=int, default=8, help="conversations at the same time")
    add("--rate", type=float, default=4, help="requests a second, for the timestamps")
    add("--system-tokens", type=lengths, default=(16, 48), help="of a system prompt: N or N-M")
    add("--question-tokens", type=lengths, default=(8, 24), help="of a question")
    add("--answer-tokens", type=lengths, default=(2, 12), help="of an answer")
    add("--image-tokens", type=int, default=IMAGE_TOKENS, help="of a page")
    add("--block", type=int, default=1, help="tokens of a block; 1: prompts are compared to the token, as vlcache does")
    add("--seed", type=int, default=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    a = parser.parse_args()
    if min(a.requests, a.pages, a.open, a.image_tokens, a.block) < 1 or a.systems < 0 or a.rate <= 0:
        parser.error("counts are at least 1")
    for line, _ in trace(a):
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
