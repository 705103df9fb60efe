"""Completion scripts. Each function takes the commands with their descriptions, and the words each of them takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .completion import Word

Words = Mapping[str, "Sequence[Word]"]


def bash(commands: Mapping[str, str], words: Words) -> str:
    """For bash 3.2 and later."""
    values = []
    for command, word in _flat(words):
        needed, names = int(word.value in ("one", "many")), " ".join(word.names)
        setting = f"names='{names}' files={int(word.files)} needed={needed} ;;"
        values += [f"'{command} {flag}') {setting}" for flag in word.flags if word.value != "none"]
    arguments = []
    for command, those in words.items():
        free = [word for word in those if not word.flags]
        flags = " ".join(flag for word in those for flag in word.flags)
        names = " ".join(name for word in free for name in word.names)
        files = int(any(word.files for word in free))
        arguments.append(f"{command}) flags='{flags}' names='{names}' files={files} ;;")
    return f"""# Completion of hypersphere for bash
_hypersphere() {{
    local command=${{COMP_WORDS[1]}} word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
    local flags= names= files=0 needed=0
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{" ".join(commands)} --help --version' -- "$word"))
        return
    fi
    # --flag=value is three words to bash
    local joined=0
    if [ "$word" = = ]; then
        word= joined=1
    elif [ "$before" = = ]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}} joined=1
    fi
    case "$command $before" in
        {_indented(values, 8)}
    esac
    if [ "$joined" = 0 ] && [ "$needed" = 0 ]; then
        case "$command" in
            {_indented(arguments, 12)}
        esac
        if [[ $word == -* ]]; then
            names=$flags files=0
        fi
    fi
    COMPREPLY=($(compgen -W "$names" -- "$word"))
    if [ "$files" = 1 ]; then
        compopt -o filenames 2>/dev/null
        local IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
}}
complete -F _hypersphere hypersphere
"""


def zsh(commands: Mapping[str, str], words: Words) -> str:
    """Sourced, or as a file _hypersphere in $fpath."""
    described = [_quoted(f"{name}:{text}") for name, text in commands.items()]
    cases = []
    for command, those in words.items():
        specs = [spec for word in those for spec in _zsh_specs(word)]
        cases.append(f"{command})\n            _arguments {_indented(specs, 16, ' ' + chr(92))} ;;")
    return f"""#compdef hypersphere
# Completion of hypersphere for zsh
_hypersphere_names_or_files() {{
    compadd -- "$@"
    _files
}}
_hypersphere() {{
    local -a commands
    commands=(
        {_indented(described, 8)}
    )
    if (( CURRENT == 2 )); then
        [[ $PREFIX == -* ]] && compadd -- --help --version || _describe command commands
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
        {_indented(cases, 8)}
    esac
}}
if [[ $funcstack[1] == _hypersphere ]]; then
    _hypersphere "$@"
else
    (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
    compdef _hypersphere hypersphere
fi
"""


def _zsh_specs(word: Word) -> Iterator[str]:
    action = f"({' '.join(word.names)})" if word.names else "_files" if word.files else " "
    if word.names and word.files:
        action = f" _hypersphere_names_or_files {' '.join(word.names)}"
    if not word.flags:
        yield _quoted(f"{'*' if word.value == 'many' else ''}:argument:{action}")
    for flag in word.flags:
        help = f"[{_escaped(word.help)}]"
        end = {"none": "", "optional": f"::value:{action}"}.get(word.value, f":value:{action}")
        # -: the value is joined to the flag by =, so that what stands after a space is something else
        sign = {"none": "", "optional": "=-"}.get(word.value, "=")
        yield _quoted(f"{flag}{sign}{help}{end}")


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def fish(commands: Mapping[str, str], words: Words) -> str:
    lines = [
        f"complete -c hypersphere -n __hypersphere_begins -a {name} -d {_quoted(text)}"
        for name, text in commands.items()
    ]
    lines += [f"complete -c hypersphere -n __hypersphere_begins -l {flag}" for flag in ("help", "version")]
    for command, word in _flat(words):
        names = [f"-{'l' if flag.startswith('--') else 's'} {flag.lstrip('-')}" for flag in word.flags]
        need = ["-r"] if word.flags and word.value in ("one", "many") else []
        need += ["-F"] if word.files else ["-f"] if word.flags else []
        need += ["-a", _quoted(" ".join(word.names))] if word.names else []
        if names or need:
            line = ["complete -c hypersphere -n", f"'__hypersphere_is {command}'", *names, *need]
            lines.append(" ".join([*line, *(["-d", _quoted(word.help)] if word.flags else [])]))
    return f"""# Completion of hypersphere for fish
function __hypersphere_begins
    test (count (commandline -opc)) -eq 1
end
function __hypersphere_is
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test $words[2] = $argv[1]
end
complete -c hypersphere -f
{chr(10).join(lines)}
"""


def _flat(words: Words) -> Iterator[tuple[str, Word]]:
    for command, those in words.items():
        for word in those:
            yield command, word


def _indented(lines: Sequence[str], indent: int, end: str = "") -> str:
    return f"{end}\n{' ' * indent}".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"  # as all three shells understand it
