"""A reference of `LookaheadStep`: the graph of the step is kept, and differentiated by double backward."""

import torch
from torch.func import functional_call

from expound.training.bilevel.lookahead import LookaheadStep, clip_factor, seeded_random_state


class UnrolledStep(LookaheadStep):
    """The same gradients by an ordinary backward pass through the step."""

    @torch.enable_grad()
    def gradient(self, batch, teacher_explanation, held_out, seed, explained=None):
        teacher_explanation = teacher_explanation.detach().requires_grad_()
        weights = self.student.trainable_weights()
        with seeded_random_state(seed):
            loss = functional_call(self.student, weights, ("loss", batch, teacher_explanation))
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True, materialize_grads=True)
        factor = clip_factor(slopes, self.max_norm)
        after = {}
        for (name, weight), slope in zip(weights.items(), slopes, strict=True):
            after[name] = self.update(name, weight.detach(), factor * slope)
        call, leaves = ("simulation", held_out), [teacher_explanation]
        if explained is not None:
            call, leaves = ("loss", held_out, explained), [teacher_explanation, explained]
        with self.student.explained.evaluation_mode():
            loss = functional_call(self.student, after, call)
        found = torch.autograd.grad(loss, leaves, materialize_grads=True)
        if explained is not None:
            explained.grad = found[1]
        return found[0], loss.detach()
