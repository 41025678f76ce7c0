"""A few rows times a matrix, without packing it."""

import re

import jax
import numpy as np
import pytest

from specdec.models.t5 import products


@pytest.mark.parametrize("rows", [2, 4, 5, 8, 11, 16, 27, 32, 33, 64])
def test_is_the_matrix_product(rows):
  rng = np.random.default_rng(rows)
  x = rng.normal(size=(rows, 70)).astype(np.float32)
  kernel = rng.normal(size=(90, 70)).astype(np.float32)
  found = jax.jit(products.few_rows)(x, kernel)
  assert found.shape == (rows, 90)
  np.testing.assert_allclose(found, np.float64(x) @ np.float64(kernel).T, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_how_many_there_are():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(16, 64)).astype(np.float32)
  kernel = rng.normal(size=(96, 64)).astype(np.float32)
  whole = np.asarray(jax.jit(products.few_rows)(x, kernel))
  for rows in (2, 5, 9):
    np.testing.assert_allclose(jax.jit(products.few_rows)(x[:rows], kernel), whole[:rows],
                               rtol=1e-5, atol=1e-5)


def test_the_products_are_never_stored():
  """They are as many as the matrix has elements, times the rows."""
  shape = lambda *s: jax.ShapeDtypeStruct(s, np.float32)
  program = jax.jit(products.few_rows).lower(shape(8, 512), shape(1024, 512)).compile()
  assert program.memory_analysis().temp_size_in_bytes < 4 * 1024 * 512 / 8


def test_the_matrix_comes_first():
  """XLA packs the second operand, and puts them in the order of the result's layout."""
  shape = lambda *s: jax.ShapeDtypeStruct(s, np.float32)
  program = jax.jit(products.few_rows).lower(shape(5, 512), shape(1024, 512)).compile().as_text()
  product = re.search(r"= f32\[([\d,]+)\]\S* dot\(", program)
  assert product and product[1] == "1024,8"
