"""Small models that take any encoding: a decoder language model and the RoFormer encoder, with loaders for both."""

from whorl.models.decoder import Decoder
from whorl.models.load import load_decoder, load_roformer
from whorl.models.roformer import RoFormer, RoFormerClassifier, RoFormerMaskedLM

__all__ = ["Decoder", "RoFormer", "RoFormerClassifier", "RoFormerMaskedLM", "load_decoder", "load_roformer"]
