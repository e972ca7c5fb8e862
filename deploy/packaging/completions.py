"""Make completion functions for bash and zsh from a program's --help."""
from __future__ import annotations

import shlex

from help_text import Help, Row

FILES = ("FILE", "FILES", "PATH", "TRACE")
DIRECTORIES = ("DIR", "MODEL")
# In bash the value after "=" is a separate word, because "=" is in COMP_WORDBREAKS.
BASH = """# bash completion of {program}, made from its --help: for bash-completion or `source`.
{function}()
{{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=''
    ((COMP_CWORD > 0)) && prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    if [[ $cur == "=" ]]; then
        cur=''
    elif [[ $prev == "=" ]]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    COMPREPLY=()
    case $prev in
{cases}
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W '{flags}' -- "$cur")
        return
    fi
{words}
}}
complete -o default -F {function} {program}
"""


def name_of(program: str) -> str:
    return "_" + program.replace("-", "_")


def bash_case(row: Row) -> str | None:
    if row.choices():
        action = f"mapfile -t COMPREPLY < <(compgen -W '{' '.join(row.choices())}' -- \"$cur\")"
    elif row.value in FILES:
        action = 'mapfile -t COMPREPLY < <(compgen -f -- "$cur")'
    elif row.value in DIRECTORIES:
        action = 'mapfile -t COMPREPLY < <(compgen -d -- "$cur")'
    elif row.value and not row.is_switch:
        action = ":"  # no completion, such as for a number
    else:
        return None
    return f"    {' | '.join(row.flags)}) {action}; return ;;"


def next_words(commands: list[list[str]]) -> dict[str, list[str]]:
    """The words that may follow each word: {"": ["cache", "chat"], "cache": ["reset", "erase"]}."""
    following: dict[str, list[str]] = {}
    for words in commands:
        for i, word in enumerate(words):
            before = words[i - 1] if i else ""
            if word not in following.setdefault(before, []):
                following[before].append(word)
    return following


def bash_words(help_: Help) -> str:
    following = next_words(help_.commands())
    if not following:
        return "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")"
    lines = ["    case $prev in"]
    for before, words in following.items():
        if before:
            lines.append(f"    {before}) mapfile -t COMPREPLY < <(compgen -W '{' '.join(words)}' "
                         "-- \"$cur\") ;;")
    lines += [f"    *) mapfile -t COMPREPLY < <(compgen -W '{' '.join(following[''])}' "
              "-- \"$cur\") ;;", "    esac"]
    return "\n".join(lines)


def bash(help_: Help) -> str:
    options = help_.options()
    cases = [case for case in map(bash_case, options) if case]
    flags = " ".join(flag for row in options for flag in row.flags)
    return BASH.format(program=help_.program, function=name_of(help_.program),
                       cases="\n".join(cases), flags=flags, words=bash_words(help_))


def zsh_text(text: str) -> str:
    """The text, escaped for a description in [ ] of _arguments."""
    for special in ("\\", "[", "]", ":"):
        text = text.replace(special, "\\" + special)
    return text


def zsh_spec(row: Row, flag: str) -> str:
    spec = f"*{flag}" if not row.value else f"*{flag}="
    spec += f"[{zsh_text(row.help)}]"
    if row.value:
        name = "".join(c if c.isalnum() else " " for c in row.value)[:30].strip() or "value"
        if row.choices():
            spec += f":{name}:({' '.join(row.choices())})"
        elif row.value in FILES:
            spec += f":{name}:_files"
        elif row.value in DIRECTORIES:
            spec += f":{name}:_files -/"
        else:
            spec += f":{name}: "
    return spec


def zsh(help_: Help) -> str:
    lines = [f"#compdef {help_.program}", f"# zsh completion of {help_.program}, made from its "
             "--help.", "_arguments -s -S \\"]
    for row in help_.options():
        lines += [f"    {shlex.quote(zsh_spec(row, flag))} \\" for flag in row.flags]
    following = next_words(help_.commands())
    if following:
        lines.append(f"    {shlex.quote('1:command:(' + ' '.join(following['']) + ')')} \\")
        second = sorted({word for before, words in following.items() if before for word in words})
        if second:
            lines.append(f"    {shlex.quote('2:argument:(' + ' '.join(second) + ')')} \\")
    lines.append("    '*:file:_files'")
    return "\n".join(lines) + "\n"
