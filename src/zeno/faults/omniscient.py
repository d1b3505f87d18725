from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.faults.line_search import Line, most_harmful, over_strengths


class Omniscient(Fault):
    """The most harmful of several directions and scales, found by trying the rule; -mean if the rule is unknown.

    Harm is how far the update points against mu. The rule is tried 24 times per step.
    """

    def on_gradients(self, scene: Scene) -> Tensor:
        mu = scene.mu
        tries = over_strengths(_directions(scene))
        tries.append((lambda t: t * mu, 0.1))  # makes the mean smaller
        found = most_harmful(scene, tries, against=mu)
        if found is None:
            return scene.all_send(-mu)
        line, scale = found
        return scene.all_send(line(scale))


def _directions(scene: Scene) -> list[Line]:
    """Vectors [d] by scale."""
    mu, sigma = scene.mu, scene.sigma
    signs = -mu.sign() * (mu.norm() / mu.sign().norm().clamp(min=1))  # with mu's norm
    turned = -1.1 * scene.correct.sum(dim=0) / len(scene.own)  # just enough to reverse the mean of all
    return [lambda t: -t * mu, lambda t: mu - t * sigma, lambda t: t * signs, lambda t: t * turned]
