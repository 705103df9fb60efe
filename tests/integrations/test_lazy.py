"""Names of the integrations by attribute access; their packages are imported when they are used."""

import subprocess
import sys

import pytest

import hypersphere as hs

PROGRAM = """
import sys
import hypersphere as hs
hs.integrations
assert callable(hs.integrations.huggingface.save_pretrained)
assert not {"sklearn", "transformers", "lightning", "accelerate"} & set(sys.modules)
assert hs.integrations.sklearn.SphereClassifier().fit([[1, 0], [0, 1]], [0, 1]).predict([[2, 0]]) == 0
assert not {"transformers", "lightning", "accelerate"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_package_is_imported_when_its_file_is_used():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_names():
    names = {"sklearn", "huggingface", "AccelerateEnergy", "LightningCallback", "TransformersCallback"}
    assert names <= set(dir(hs.integrations))
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        hs.integrations.keras  # noqa: B018
