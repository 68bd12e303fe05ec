"""Small real models as layer lists, ready to be cut anywhere."""

from pptoolkit.models.gpt import GPTConfig, gpt_layers, loss_without, next_token_loss
from pptoolkit.models.mlp import mlp_layers, squared_error
from pptoolkit.models.sleeping import sleeping_layers

__all__ = ["GPTConfig", "gpt_layers", "loss_without", "mlp_layers", "next_token_loss", "sleeping_layers", "squared_error"]
