"""Public names of the bridge, and the module that each is in."""

from whorl.bridge.advice import Advice as Advice
from whorl.bridge.advice import advise as advise
from whorl.bridge.difference import Difference as Difference
from whorl.bridge.difference import compare as compare
from whorl.bridge.difference import diff as diff
from whorl.bridge.exports import export as export
from whorl.bridge.exports.onnx import export_onnx as export_onnx
from whorl.bridge.family_table import families as families
from whorl.bridge.inexpressible import InexpressibleError as InexpressibleError
from whorl.bridge.inspection import inspect as inspect
from whorl.bridge.linting import Finding as Finding
from whorl.bridge.linting import lint as lint
from whorl.bridge.model import Group as Group
from whorl.bridge.model import Model as Model
from whorl.bridge.model import read as read
from whorl.bridge.programs import facts as facts
from whorl.bridge.programs import read_as as read_as
