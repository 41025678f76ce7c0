"""Makes faulty sentences out of clean ones, for the `correct:` task."""

import random
import string


def _misspell(word: str, rng: random.Random) -> str:
  """One slip of the keyboard: a letter swapped, lost, doubled or replaced."""
  if len(word) < 3:
    return word
  i = rng.randrange(len(word) - 1)
  kind = rng.randrange(4)
  if kind == 0:
    return word[:i] + word[i + 1] + word[i] + word[i + 2:]
  if kind == 1:
    return word[:i] + word[i + 1:]
  if kind == 2:
    return word[:i] + word[i] + word[i:]
  return word[:i] + rng.choice(string.ascii_lowercase) + word[i + 1:]


def _miscase(word: str, rng: random.Random) -> str:
  if word[:1].isupper():
    return word[:1].lower() + word[1:]
  return word.upper() if rng.random() < 0.2 else word[:1].upper() + word[1:]


def corrupt(text: str, rng: random.Random, rate: float = 0.15) -> str:
  """Returns `text` with words dropped, doubled, swapped, miscased or misspelt.

  Args:
    text: a clean sentence.
    rng: source of randomness; the same state gives the same sentence.
    rate: expected share of words that are touched. One sentence in ten or so
      stays clean, so that a model also learns to leave text alone.

  Returns:
    The faulty sentence; never empty unless `text` is.
  """
  words = text.split()
  out: list[str] = []
  i = 0
  while i < len(words):
    word = words[i]
    i += 1
    if rng.random() >= rate:
      out.append(word)
      continue
    kind = rng.choices(("drop", "double", "swap", "case", "spell"),
                       (1, 1, 1, 1.5, 2.5))[0]
    if kind == "drop" and len(words) > 3:
      # Only words that the context gives back: what is lost for good cannot be
      # corrected by anyone.
      if len(word) > 4:
        out.append(_misspell(word, rng))
    elif kind == "double":
      out += [word, word]
    elif kind == "swap" and i < len(words):
      out += [words[i], word]
      i += 1
    elif kind == "case":
      out.append(_miscase(word, rng))
    else:
      out.append(_misspell(word, rng))
  return " ".join(out)
