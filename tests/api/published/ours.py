"""Fields of answers that the official packages do not know: by type and name, with the page that
tells of them, or with who else has published them."""

OPEN_RESPONSES = "Open Responses"
OPENAI = "OpenAI sends it, its package lacks it"
ANOTHER = "of the other API that this route serves"
CLIENTS = "docs/clients.md"

OURS = {
    **dict.fromkeys(
        (
            "ChatCompletionMessage.reasoning",
            "ChatCompletionMessage.reasoning_content",
            "ChoiceDelta.reasoning",
            "ChoiceDelta.reasoning_content",
            "PromptTokensDetails.dropped_messages",
            "Model.max_model_len",
            "ModelInfo.max_model_len",
            *("Model.root", "ModelInfo.root"),
            "Model.architecture",
            "ModelInfo.architecture",
            *("Model.presets", "ModelInfo.presets"),
            *("Model.default_parameters", "ModelInfo.default_parameters"),
            "Model.parent",
            "ModelInfo.parent",
        ),
        CLIENTS,
    ),
    **dict.fromkeys(
        ("ToolChoiceFunction.namespace", "ToolChoiceCustom.namespace"), "docs/responses.md"
    ),
    **dict.fromkeys(
        ("Response.frequency_penalty", "Response.presence_penalty", "ResponseErrorEvent.error"),
        OPEN_RESPONSES,
    ),
    **dict.fromkeys(
        (
            "Response.store",
            "Logprob.bytes",
            "LogprobTopLogprob.bytes",
            "ResponseCustomToolCall.status",
        ),
        OPENAI,
    ),
    **dict.fromkeys(
        (
            *("Model.type", "Model.display_name", "Model.created_at", "Model.lifecycle"),
            *("Model.max_input_tokens", "Model.max_tokens", "Model.capabilities"),
            *("Model.deprecated_at", "Model.line", "Model.retires_at"),
            *("ModelInfo.object", "ModelInfo.created", "ModelInfo.owned_by"),
        ),
        ANOTHER,
    ),
}
