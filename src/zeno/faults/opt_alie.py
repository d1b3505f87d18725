from torch import Tensor

from zeno.faults.alie import default_z
from zeno.faults.fault import Fault, Scene
from zeno.faults.line_search import worst_strength


class OptALIE(Fault):
    """ALIE with the z that moves the update farthest, found by trying the rule; the z of ALIE if it is unknown.

    Harm is how far the update moves along -sigma: the distance from mu would count the noise of correct gradients too.
    """

    def on_gradients(self, scene: Scene) -> Tensor:
        mu, sigma = scene.mu, scene.sigma
        default = default_z(scene.size, len(scene.workers))
        z = worst_strength(scene, lambda z: mu - z * sigma, against=sigma, unknown=default)
        return scene.all_send(mu - z * sigma)
