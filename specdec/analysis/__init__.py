"""The paper's formulas, tables and figures, and measurements beside them. NumPy only."""
