#!/usr/bin/env python3
"""`cmake --install` and the Debian package: all files are installed, match the programs, and work.

    test_install.py [NAME...]    only the cases of these names
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from tarn_test import build_dir, patience, server  # noqa: E402

PROGRAMS = ["tarn-server", "tarnctl", "tarn-loadgen", "tarn-bench", "tarn-cachebench",
            "tarn-cachesim", "tarn-schedbench", "tarn-retrievalbench"]
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"]
DEMO = "share/tarn/demo-model"
# In tenths, of systemd-analyze security: the unit has 1.2, that of a CUDA build 1.4.
EXPOSURE_MAX = {"PrivateDevices=yes": 13, "PrivateDevices=no": 15}
CANCEL_SECONDS = 5  # seconds that a drain adds after its timeout, server/main.c
HERE = Path(__file__).resolve().parent


def run(*command, ok=0, **options):
    """Standard output of a command that must end with status `ok`."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True,
                          timeout=patience(300),
                          check=False, **options)
    assert done.returncode == ok, (command, done.returncode, done.stdout[-3000:],
                                   done.stderr[-3000:])
    return done.stdout + done.stderr


def need(*programs):
    for program in programs:
        assert shutil.which(program), f"{program} is missing: see TEST_PACKAGES in deploy/lib.sh"


def flags_of(prefix, program):
    """Every option of --help, as a user reads it; --[no-]x is two."""
    text = run(prefix / "bin" / program, "--help", env={})
    # Groups begin with a heading; the other paragraphs are sentences, and some of them name flags.
    groups = [p for p in text.split("\n\n") if re.match(r"\S[^\n]*[^\n.:,]\n  \S", p)]
    found = set()
    for tag in re.findall(r"^  (-\S.*?)(?:  |$)", "\n".join(groups), re.M):
        for flag in re.findall(r"(?:^|, )(--?[\w\[\]-]+)", tag):
            found |= ({flag.replace("[no-]", ""), flag.replace("[no-]", "no-")})
    assert len(found) > 3, (program, found)
    return sorted(found)


# --- manuals, completions, tarn.conf ---

def manuals_render_without_warnings(prefix):
    need("mandoc")
    for program in PROGRAMS:
        page = prefix / "share/man/man1" / f"{program}.1"
        said = run("mandoc", "-Tlint", "-W", "style", page)
        assert not said, said
        text = run("mandoc", "-Tutf8", "-O", "width=100", page)
        text = re.sub(r".\x08", "", text)
        for title in SECTIONS:
            assert re.search(f"^{title}$", text, re.M), (program, title)
        joined = re.sub(r"\s+", " ", text.replace("\u2010", "-"))
        for flag in flags_of(prefix, program):
            both = flag.replace("--no-", "--").replace("--", "--[no-]", 1)
            assert flag in joined or both in joined, (program, flag)


def complete_bash(script, *words):
    """The completions that bash offers after these words; bash treats "=" as a word."""
    code = (f'source "{script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
            'f=$(complete -p "$1" | sed "s/.*-F \\([^ ]*\\).*/\\1/"); "$f"; '
            'printf "%s\\n" "${COMPREPLY[@]}"')
    return run("bash", "-c", code, "bash", *words).split()


def bash_completes_every_option_and_value(prefix):
    folder = prefix / "share/bash-completion/completions"
    for program in PROGRAMS:
        offered, wanted = complete_bash(folder / program, program, "-"), flags_of(prefix, program)
        assert sorted(offered) == wanted, set(offered) ^ set(wanted)
    script = folder / "tarn-server"
    assert complete_bash(script, "tarn-server", "--device", "c") == ["cpu", "cuda"]
    assert complete_bash(script, "tarn-server", "--device", "=", "cp") == ["cpu"]
    assert complete_bash(script, "tarn-server", "--device", "=") == ["auto", "cpu", "cuda", "ref"]
    assert "skip-join-mlfq" in complete_bash(script, "tarn-server", "--scheduling-policy", "")
    conf = f"{prefix}/etc/tarn/tarn.conf"
    assert complete_bash(script, "tarn-server", "--config", conf[:-3]) == [conf]
    assert complete_bash(script, "tarn-server", "--port", "") == []
    script = folder / "tarnctl"
    assert complete_bash(script, "tarnctl", "ca") == ["cache"]
    assert complete_bash(script, "tarnctl", "cache", "") == ["reset", "erase", "verify"]
    assert complete_bash(folder / "tarn-loadgen", "tarn-loadgen", "s") == ["sim"]


def zsh_answers(folder, typed, wanted):
    """Type into an interactive zsh with Tarn's completions; wait until it shows `wanted`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": os.environ["PATH"], "TERM": "dumb",
                                                "HOME": str(folder), "COLUMNS": "200"})
    shown, sent, end = "", False, time.monotonic() + 60
    set_up = (f"fpath=('{folder}' $fpath); autoload -Uz compinit; compinit -u -D; "
              "setopt noautomenu nolistbeep; PROMPT='rea''dy>'\n")
    try:
        os.write(terminal, set_up.encode())
        while wanted not in shown.partition("ready>")[2]:
            assert time.monotonic() < end, f"zsh did not show {wanted!r} but {shown!r}"
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 65536).decode(errors="replace")
            if "ready>" in shown and not sent:
                sent = True
                os.write(terminal, typed.encode())
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def zsh_completes_every_option_and_value(prefix):
    need("zsh")
    folder = prefix / "share/zsh/site-functions"
    for program in PROGRAMS:
        run("zsh", "-n", folder / f"_{program}")
        text = (folder / f"_{program}").read_text()
        assert text.startswith(f"#compdef {program}\n")
        for flag in flags_of(prefix, program):
            assert f"*{flag}=[" in text or f"*{flag}[" in text, (program, flag)
    zsh_answers(folder, "tarn-server --load-fo\t", "--load-format=")
    zsh_answers(folder, "tarn-server --device=cud\t", "--device=cuda")
    zsh_answers(folder, "tarnctl toke\t", "tokenize")


def configuration_of(log):
    """The configuration line without the options that the test sets."""
    line = re.search(r"configuration (.*)", log.read_text()).group(1)
    return re.sub(r"\b(port=\d+|model=\"[^\"]*\")", "", line)


def start(prefix, folder, *options):
    """Start the installed server on a free port until it is ready; return its configuration."""
    log = folder / "log"
    command = [prefix / "bin/tarn-server", "--port", "0", *options]
    environment = {"TARN_MODEL": str(prefix / DEMO), "TARN_PROFILE_COST": "false",
                   "XDG_CACHE_HOME": str(folder)}
    with log.open("wb") as out:
        process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=out,
                                   env=environment)
    end = time.monotonic() + 120
    try:
        while " serves " not in log.read_text():
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
    finally:
        process.terminate()
        assert process.wait(timeout=patience(60)) == 0, log.read_text()
    return configuration_of(log)


def conf_holds_every_option_with_its_default(prefix):
    conf = prefix / "etc/tarn/tarn.conf"
    text = conf.read_text()
    names = {line.partition("=")[0].strip("# ") for line in text.splitlines()
             if re.match(r"#[\w-]+ =", line)}
    wanted = {flag[2:] for flag in flags_of(prefix, "tarn-server")
              if not flag.startswith("--no-") and flag[2:] not in ("config", "help", "version")}
    assert names == wanted, names ^ wanted
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = start(prefix, folder)
        assert start(prefix, folder, "--config", conf) == plain
        every = folder / "every.conf"  # all defaults stated: nothing may change
        every.write_text(re.sub(r"^#([\w-]+ = \S)", r"\1", text, flags=re.M))
        assert len(re.findall(r"^[\w-]+ = ", every.read_text(), re.M)) > 30
        assert start(prefix, folder, "--config", every) == plain
        changed = folder / "changed.conf"
        changed.write_text(text.replace("#max-num-seqs = 64", "max-num-seqs = 3"))
        assert 'max-num-seqs=3' in start(prefix, folder, "--config", changed)


def installing_again_keeps_an_edited_conf(prefix):
    conf = prefix / "etc/tarn/tarn.conf"
    before = conf.read_text()
    conf.write_text(before + "# mine\n")
    run("cmake", "--install", build_dir(), "--prefix", prefix)
    assert conf.read_text().endswith("# mine\n")
    conf.write_text(before)
    assert (prefix / "etc/tarn/tarn.env").stat().st_mode & 0o777 == 0o600


# --- the systemd unit ---

def unit_settings(text):
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def unit_passes_systemds_checks(prefix):
    need("systemd-analyze")
    unit = prefix / "lib/systemd/system/tarn.service"
    said = run("systemd-analyze", "verify", "--man=no", unit)
    assert "tarn.service" not in said, said
    text = unit.read_text()
    threshold, = [t for line, t in EXPOSURE_MAX.items() if line in text]
    print("  " + run("systemd-analyze", "security", "--offline=yes", "--no-pager",
                     f"--threshold={threshold}", unit).strip().splitlines()[-1].strip())
    seen = unit_settings(text)
    drain = int(re.search(r"^#drain-timeout = (\d+)$",
                          (prefix / "etc/tarn/tarn.conf").read_text(), re.M).group(1))
    assert int(seen["TimeoutStopSec"][0]) > drain + CANCEL_SECONDS
    assert seen["Restart"] == ["on-failure"] and seen["KillSignal"] == ["SIGTERM"]
    assert "-HUP" in seen["ExecReload"][0] and seen["StateDirectory"] == ["tarn"]
    assert seen["ExecStart"] == [f"{prefix}/bin/tarn-server --config {prefix}/etc/tarn/tarn.conf"]
    # The default --cache-dir must be the state directory: the rest is read-only.
    assert "XDG_CACHE_HOME=/var/lib " in seen["Environment"][0]


def system_calls(filters):
    """The system calls that SystemCallFilter= lines allow; systemd resolves the groups."""
    def expand(name):
        if not name.startswith("@"):
            return {name}
        lines = run("systemd-analyze", "syscall-filter", "--no-pager", name).splitlines()[1:]
        names = [line.strip() for line in lines if line.strip() and "#" not in line]
        return set().union(*map(expand, names))

    allowed = set()
    for line in filters:
        names = set().union(*map(expand, line.lstrip("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def unit_allows_the_system_calls_of_the_server(prefix):
    """The unit allows the special calls of the server, and no call that changes the machine."""
    unit = unit_settings((prefix / "lib/systemd/system/tarn.service").read_text())
    allowed = system_calls(unit["SystemCallFilter"])
    for call in ("io_uring_setup", "io_uring_enter", "io_uring_register", "sched_setaffinity",
                 "mlock", "fallocate", "epoll_wait", "clone3", "arch_prctl", "statfs"):
        assert call in allowed, call
    for call in ("mount", "ptrace", "reboot", "bpf", "init_module", "keyctl", "chroot"):
        assert call not in allowed, call


# --- libtarn-client ---

def functions_of(header, pattern):
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    return set(re.findall(rf"\b({pattern})\s*\(", text))


def library_shows_what_its_headers_declare(prefix):
    include = prefix / "include/tarn"
    wanted = functions_of(include / "tarn_client.h", r"tarn_\w+")
    wanted |= functions_of(include / "base/http.h", r"http_(?:loop|timer)_\w+")
    assert len(wanted) > 30
    lines = run("nm", "-D", "--defined-only", prefix / "lib/libtarn-client.so").splitlines()
    shown = {line.split()[-1].partition("@")[0] for line in lines}
    assert wanted <= shown, wanted - shown
    foreign = [s for s in shown if not re.match(r"(tarn|http_loop|http_timer|buf|hist|status)_", s)
               and s != "TARN_CLIENT_0"]
    assert not foreign, foreign


def example_builds_outside_of_the_tree(prefix):
    need("pkg-config", "g++")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib"),
                   "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    example = prefix / "share/doc/tarn/examples/example.c"
    with tempfile.TemporaryDirectory() as name, server(prefix / DEMO) as url:
        folder = Path(name)
        flags = run("pkg-config", "--cflags", "--libs", "tarn-client", env=environment).split()
        run("cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", example, *flags, "-o",
            folder / "by_pkg_config")
        assert " tokens, " in run(folder / "by_pkg_config", url, env=environment)
        run("cmake", "-S", HERE / "installed", "-B", folder / "b", f"-DEXAMPLE={example}",
            f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", folder / "b")
        assert " tokens, " in run(folder / "b/example", url)
        assert run(folder / "b/loop", url) == "3 of 3: ok\n"
        assert "demo-model" in run(folder / "b/plus_plus", url)
        found = re.search(r"^tarn-client_DIR:PATH=(.*)$", (folder / "b/CMakeCache.txt").read_text(),
                          re.M).group(1)
        assert found.startswith(str(prefix)), found  # no other installation


# --- the Debian package ---

def deb_has_what_it_needs(_prefix):
    need("dpkg-deb", "dpkg-shlibdeps", "file")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("cpack", "--config", build_dir() / "CPackConfig.cmake", "-B", folder / "cpack")
        deb, = (folder / "cpack").glob("tarn_*.deb")
        depends = run("dpkg-deb", "-f", deb, "Depends")
        for library in ("libc6", "libcurl4", "libjansson4", "libmicrohttpd12", "libpcre2-8-0",
                        "libsodium23", "libsqlite3-0", "liburing2", "libutf8proc"):
            assert library in depends, (library, depends)
        assert not run("dpkg-deb", "-f", deb, "Description").splitlines()[1].startswith("  ")
        run("dpkg-deb", "-R", deb, folder / "x")
        control = folder / "x/DEBIAN"
        for conffile in (control / "conffiles").read_text().split():
            assert (folder / "x" / conffile.lstrip("/")).is_file(), conffile
        for script in ("postinst", "prerm", "postrm"):
            run("sh", "-n", control / script)
            assert (control / script).stat().st_mode & 0o111
        unit = (folder / "x/usr/lib/systemd/system/tarn.service").read_text()
        assert "ExecStart=/usr/bin/tarn-server --config /etc/tarn/tarn.conf\n" in unit
        assert str(build_dir()) not in unit
        assert (folder / "x/usr/share/zsh/vendor-completions/_tarnctl").is_file()
        version = run(folder / "x/usr/bin/tarn-server", "--version").split()[-1]
        assert run("dpkg-deb", "-f", deb, "Version").strip() == version
        print(f"  {deb.name}: {deb.stat().st_size / 1e6:.1f} MB, of which the demo model "
              f"{(folder / 'x/usr' / DEMO / 'model.safetensors').stat().st_size / 1e6:.1f} MB "
              "uncompressed")


CASES = [manuals_render_without_warnings, bash_completes_every_option_and_value,
         zsh_completes_every_option_and_value, conf_holds_every_option_with_its_default,
         installing_again_keeps_an_edited_conf, unit_passes_systemds_checks,
         unit_allows_the_system_calls_of_the_server, library_shows_what_its_headers_declare,
         example_builds_outside_of_the_tree, deb_has_what_it_needs]


def main():
    only = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        prefix = Path(name) / "tarn"
        run("cmake", "--install", build_dir(), "--prefix", prefix)
        for case in CASES:
            if not only or case.__name__ in only:
                begin = time.monotonic()
                case(prefix)
                print(f"ok {case.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
