"""Chat templates of the shapes that models come with."""

# SmolLM2: a system prompt by default.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Qwen 3: tools as JSON, thinking cut out of earlier answers.
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{% continue %}{%- endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
        {%- if call.function.arguments is string %}
            {{- call.function.arguments }}
        {%- else %}
            {{- call.function.arguments | tojson }}
        {%- endif %}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# Llama 3: trims every message; tools as indented JSON.
TRIMMING = """{{- bos_token }}
{%- if tools %}
    {{- tools | tojson(indent=4) }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim }}
    {{- message.name | upper if message.name else '' }}
    {%- if message.reasoning_content %}{{- message.reasoning_content }}{%- endif %}
    {%- generation %}{{- '<|im_end|>' }}{%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|end|>\n\n' }}{%- endif %}
"""

# Mistral: strict about roles.
INST = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)

# DeepSeek: joins a call's arguments to text, so they must be text.
TEXT_ARGUMENTS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}{{ '```' + call.function.arguments + '```' }}"
    "{% endfor %}{% endfor %}"
)

FOR_FAMILY = {
    "byte_level": [CHATML, TOOLS, TRIMMING],
    "flagged": [CHATML, TOOLS, TRIMMING],
    "llama": [INST],
    "metaspace": [INST],
    "unigram": [INST],
}
