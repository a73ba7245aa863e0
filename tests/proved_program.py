"""Facts of a TPU's program that only proofs need: precisions of products, and arguments whose memory is taken over."""

import re

from mural_tf.training import tpu_program


class Program(tpu_program.Program):
    """The program, with its header, the text's first line."""

    def __init__(self, text: str):
        super().__init__(text)
        self.header = text.split("\n", 1)[0]

    def products(self) -> list[tuple[str, str, str]]:
        """Returns (place, types of the factors, precision) of each product and convolution, also of fused products.

        For example ("losses/MatMul", "f32xf32", "highest"); the precision is "default" where the text names none.
        """
        products = []
        for computation in self.computations.values():
            arrays = {instruction.name: tpu_program._ARRAY.search(instruction.shape) for instruction in computation}
            for instruction in computation:
                if instruction.opcode not in ("dot", "convolution"):
                    continue
                operands = instruction.rest.partition(")")[0]
                factors = [arrays.get(name) for name in tpu_program._OPERANDS.findall(operands)]
                types = [factor[1] for factor in factors if factor]
                match = re.search(r"operand_precision=\{(\w+)", instruction.rest)
                precision = match[1] if match else "default"
                products.append((instruction.place, "x".join(types), precision))
        return products

    def donated(self) -> set[int]:
        """Returns the numbers of the arguments whose memory an output takes over."""
        aliases = self.header.partition("input_output_alias={ ")[2]
        return {int(number) for number in re.findall(r"\{\d*\}: \((\d+), ", aliases)}
