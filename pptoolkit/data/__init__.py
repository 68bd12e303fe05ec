"""Small real data that needs no download: text files become tokens, tokens become samples, samples come in a fixed order."""

from pptoolkit.data.corpus import Corpus, find_corpus
from pptoolkit.data.dataset import TokenDataset
from pptoolkit.data.order import batches, epoch_order, steps_per_epoch
from pptoolkit.data.tokens import TokenizedCorpus, load_tokens

__all__ = ["Corpus", "TokenDataset", "TokenizedCorpus", "batches", "epoch_order", "find_corpus", "load_tokens", "steps_per_epoch"]
