from torch import Tensor

from zeno.faults.fault import Fault, Scene
from zeno.faults.inner_product import InnerProduct
from zeno.faults.line_search import worst_strength


class OptInnerProduct(Fault):
    """Inner product manipulation with the most harmful eps, found by trying the rule; 0.5 if the rule is unknown.

    Harm is how far the update points against mu: a negative inner product with mu is the purpose of this attack.
    """

    def on_gradients(self, scene: Scene) -> Tensor:
        mu = scene.mu
        eps = worst_strength(scene, lambda eps: -eps * mu, against=mu, unknown=InnerProduct.eps)
        return scene.all_send(-eps * mu)
