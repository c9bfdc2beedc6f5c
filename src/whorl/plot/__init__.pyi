"""Public names of the plots, and the module that each is in."""

from whorl.plot.bias_by_head import bias as bias
from whorl.plot.clock_hands import clocks as clocks
from whorl.plot.code_table import codes as codes
from whorl.plot.code_waves import waves as waves
from whorl.plot.decay_curves import decay as decay
from whorl.plot.frequency_ladder import frequencies as frequencies
from whorl.plot.loss_by_length import losses as losses
from whorl.plot.position_cloud import positions as positions
from whorl.plot.precision_by_position import precision as precision
from whorl.plot.save_picture import save as save
from whorl.plot.scaling_by_pair import scaling as scaling
from whorl.plot.score_by_distance import scores as scores
from whorl.plot.similarity_map import similarity as similarity
from whorl.plot.wavelengths_in_context import context as context

KINDS: dict[str, str]
