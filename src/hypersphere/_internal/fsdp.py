"""Follow a change of a layer's parameters in FSDP2, which remembers the module and name of each parameter it sharded.

torch has no public way to do that. Written for torch 2.10 to 2.13; other versions may need another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from .sharding import is_distributed


def move_parameter(model: nn.Module, parameter: Tensor, to: nn.Module, name: str) -> None:
    """Tell FSDP2 that a parameter it sharded is now `to`.`name`; nothing if it did not shard it."""
    for group in _groups(model):
        for sharded in group.fsdp_params:
            if sharded.sharded_param is parameter:
                sharded._module_info.module, sharded._module_info.param_name = to, name
                sharded._post_load_hook_handle.remove()
                sharded._post_load_hook_handle = to.register_load_state_dict_post_hook(
                    lambda *_, sharded=sharded: sharded.reset_sharded_param()
                )
                _update(group)


def drop_parameters(model: nn.Module, parameters: list[nn.Parameter]) -> None:
    """Tell FSDP2 that the model no longer has these parameters."""
    gone = set(map(id, parameters))
    for group in _groups(model):
        group.fsdp_params = [sharded for sharded in group.fsdp_params if id(sharded.sharded_param) not in gone]
        _update(group)


def _groups(model: nn.Module) -> Iterator[Any]:
    if not is_distributed():
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = vars(state).get("_fsdp_param_groups")  # since torch 2.12; before, at most one
            yield from [state._fsdp_param_group] * (state._fsdp_param_group is not None) if groups is None else groups


def _update(group: Any) -> None:
    """Derive again what a group derived from its parameters in the first forward pass."""
    hooks = (group._module_to_pre_save_state_dict_hook_handle, group._module_to_pre_load_state_dict_hook_handle)
    if not hooks[0]:
        return  # no forward pass yet
    for handles in hooks:
        for handle in handles.values():
            handle.remove()
        handles.clear()
    group._register_state_dict_hooks()
    group._init_mp_dtypes()
