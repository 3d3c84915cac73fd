"""What stands for a model version in a shared cache."""

from __future__ import annotations

from stubserve.loading.identity import identity_of
from stubserve.model_config.complete import with_instances
from stubserve.model_config.proto import ModelConfig


def test_what_may_change_while_a_version_serves_is_no_part_of_its_identity() -> None:
    config = ModelConfig(name="m", max_batch_size=8, instance_group=[{"count": 1}])
    config.version_policy.latest.num_versions = 1
    other = ModelConfig(instance_group=[{"count": 2}])
    other.version_policy.all.SetInParent()
    identity = identity_of(config, 1, b"files")
    assert identity_of(with_instances(config, other), 1, b"files") == identity
    assert identity not in (identity_of(config, 2, b"files"), identity_of(config, 1, b"other files"))
    config.max_batch_size = 4
    assert identity_of(config, 1, b"files") != identity
