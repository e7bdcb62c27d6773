"""The admin routes that show and change the settings of the running server."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from omlx_server.api.admin.guard import require_admin
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import STATE, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import JsonObject, Source, StrictModel
from omlx_server.api.settings_editor import SettingsChanged, SettingsEditor, SettingsListed
from omlx_server.errors import BadRequest, Unavailable
from omlx_server.models.hub.names import LONGEST_NAME

router = APIRouter(dependencies=[Depends(require_admin)])

_LIST = Operation("Admin", SettingsListed, may_fail=(409, *STATE)).extra

SettingName = Annotated[str, Field(max_length=LONGEST_NAME)]
Value = bool | int | float | Source | list[str | int] | JsonObject


class SettingsPatch(StrictModel):
    """New values by the dotted names of their settings: {"logging.level": "debug"}."""

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[SettingName, Value] = Field(init=False)


class SettingsReset(StrictModel):
    """Dotted names of settings."""

    keys: Annotated[list[SettingName], Field(min_length=1)]


_CHANGE = Operation("Admin", SettingsChanged, body=SettingsPatch, may_fail=(409, *STATE)).extra
_RESET = Operation("Admin", SettingsChanged, body=SettingsReset, may_fail=(409, *STATE)).extra
_RELOAD = Operation("Admin", SettingsChanged, may_fail=(409, *STATE)).extra
_RESTART = Operation("Admin", SettingsChanged, may_fail=(409, *STATE)).extra


@router.get("/admin/settings", openapi_extra=_LIST)
async def list_settings(request: Request) -> Response:
    """The settings in force, where each value is from, and what it may be. No secrets."""
    return JsonResponse(await _editor(request).listed())


@router.patch("/admin/settings", openapi_extra=_CHANGE)
async def change_settings(request: Request) -> Response:
    """Write settings to the config file, and apply those that can change while the server runs."""
    body = await body_of(request, SettingsPatch)
    values = dict(body.model_extra or {})
    if not values:
        raise BadRequest("name at least one setting and its value")
    return JsonResponse(await _editor(request).change(values))


@router.post("/admin/settings/reset", openapi_extra=_RESET)
async def reset_settings(request: Request) -> Response:
    """Remove settings from the config file, as `omlx-server config unset` does, and apply that."""
    body = await body_of(request, SettingsReset)
    return JsonResponse(await _editor(request).change(dict.fromkeys(body.keys)))


@router.post("/admin/settings/reload", openapi_extra=_RELOAD)
async def reload_settings(request: Request) -> Response:
    """Read the config file at once, as the server does within seconds after each change of it."""
    return JsonResponse(await _editor(request).reload())


@router.post("/admin/settings/restart", openapi_extra=_RESTART)
async def restart(request: Request) -> Response:
    """Finish what runs and end, if a service manager starts the server again."""
    return JsonResponse(_editor(request).restart())


def _editor(request: Request) -> SettingsEditor:
    editor = context_of(request).settings
    if editor is None:
        raise Unavailable("the server is starting")
    return editor
