"""``holdfast completion``: scripts that complete commands, options and ids in bash, zsh and fish."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    shell_complete,
)

from holdfast.cli.session import CommandSession, JsonCommand

# Bash breaks words at '@', ':' and '=', too, of which '@' begins the next: whole words are completed, and bash is given
# what stands behind the last break.
_BASH = r"""%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} words=() breaks="" mark word index response type value
    for ((index = 0; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if [[ ${#words[@]} -gt 0 && -n $line && $line != [[:space:]]* || $index -gt 0 && -z $line ]]; then
            words[${#words[@]}-1]+=$word
        else
            line=${line#"${line%%%%[![:space:]]*}"}
            words+=("$word")
        fi
        line=${line#"$word"}
    done
    for mark in @ : =; do
        [[ $COMP_WORDBREAKS == *"$mark"* ]] && breaks+=$mark
    done
    local last=${words[${#words[@]}-1]} before=""
    [[ -n $breaks ]] && before=${last%%"${last##*[$breaks]}"} && before=${before%%@}
    local IFS=$'\n'
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete $1)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("$(printf '%%q' "${value#"$before"}")")
        fi
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _WholeWords(ShellComplete):
    """Completes the value of ``--option=value`` with the option, so that the shell may replace the whole word."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        found = super().get_completions(args, incomplete)
        option, sign, _ = incomplete.partition("=")
        if not (sign and option.startswith("-")):
            return found
        return [CompletionItem(f"{option}={one.value}", one.type, one.help) for one in found]


class _Bash(_WholeWords, BashComplete):
    source_template = _BASH


class _Zsh(_WholeWords, ZshComplete):
    """As click has it."""


class _Fish(_WholeWords, FishComplete):
    """As click has it."""


VARIABLE = "_HOLDFAST_COMPLETE"
_SHELLS = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
_FILES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/holdfast.fish",
}


@click.command(cls=JsonCommand)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_obj
def completion(session: CommandSession, shell: str) -> None:
    """Write the script with which a shell completes commands, options, and ids of runs, checkpoints and requests.

    For bash and zsh: eval "$(holdfast completion bash)" in ~/.bashrc or, behind compinit, in ~/.zshrc. For fish, write
    it to ~/.config/fish/completions/holdfast.fish. Ids come from the store that the line, HOLDFAST_STORE or
    holdfast.toml names.
    """
    from holdfast.cli.main import holdfast

    script = _SHELLS[shell](holdfast, {}, "holdfast", VARIABLE).source()
    data = {"shell": shell, "file": _FILES[shell], "script": script}
    session.output.write_raw(data, script.splitlines)


def complete(group: click.Group) -> int:
    """Answer the script of a shell that asks what could stand at the cursor; return the exit code."""
    for name, maker in _SHELLS.items():
        add_completion_class(maker, name)
    return shell_complete(group, {}, "holdfast", VARIABLE, os.environ[VARIABLE])
