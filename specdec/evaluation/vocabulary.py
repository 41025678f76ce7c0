"""Which vocabulary a task is tokenised with."""

from specdec.checkpoints import vocabularies
from specdec.data.base import BaseVocabulary
from specdec.data.make import make
from specdec.errors import SpecdecError

# T5's own, on Google Cloud Storage, where it is not readable by everybody.
T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"


def of_models(carried: BaseVocabulary) -> BaseVocabulary:
  """The vocabulary of the models; T5's where their checkpoints carry none.

  Args:
    carried: that of the pair, which is the one that a user names where one is named.

  Raises:
    SpecdecError: T5's is needed and cannot be read, or is not the models'.
  """
  if carried.kind != "none":
    return carried
  width = len(carried)
  try:
    file = vocabularies.given(T5_VOCABULARY, width)
  except SpecdecError as error:
    raise SpecdecError("the models carry no vocabulary, and that of T5 cannot be had: name a "
                       f"local copy, --vocab=spiece.model ({error})") from error
  found = make(file.kind, file.content, file.extra_ids)
  if not len(found) <= width < len(found) + 128:
    raise SpecdecError(f"the models carry no vocabulary, and with {width} logits it is not T5's "
                       f"of {len(found)} pieces; name theirs, --vocab=FILE")
  return found
