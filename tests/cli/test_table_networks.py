"""Networks of lookup tables through the hardware commands, from a file of the user."""

from pathlib import Path

MODEL = """
import torch
from chop.nn.modules import freeze_tables, table_network

def build():
    torch.manual_seed(0)
    model = freeze_tables(table_network(torch.full((16, 1), 128.0), [24, 20], 4))
    return model.eval(), torch.zeros(2, 16)
"""


def test_a_network_of_tables_needs_no_quantisation(mase) -> None:
    Path("tables.py").write_text(MODEL)
    ran = mase("emit tables.py:build --max-parallelism 16 --out out/tables")
    assert ran.code == 0, ran.err
    modules = {file.stem for file in Path("out/tables/hardware/rtl").glob("*.sv")}
    assert {"thermometer", "lookup_tables", "fixed_table_sum"} <= modules
