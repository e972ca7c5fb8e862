#!/usr/bin/env python3
"""mutate.py - would the tests see it if a kernel lost a barrier, or a bound were off by one?

Change the .cu and .cuh files one place at a time (in a copy), compile only the file that changed,
link it with the objects of a finished build and run its test under a few seeds. A mutant that all
runs pass has survived: the tests miss something there, or the place is not needed.

Usage: mutate.py --build BUILD [--only REGEX] [--kinds barrier,copy,bound,rounding] [--seeds 1,2,3]
                 [--jobs N] [--limit-s SECONDS] [--list]
BUILD is a build tree with the targets cuda_* made (Makefiles or Ninja, no sanitizers needed).
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CUDA = 'kernels/cuda'

# Which test programs run a file's kernels; the others of the folder hold no kernels.
TESTS = {
    'activation.cu': ['activation'],
    'attn_choice.cu': ['attention_wgmma'],
    'attn_decode.cu': ['attention'],
    'attn_plain.cu': ['attention'],
    'attn_prefill.cu': ['attention'],
    'attn_wgmma.cu': ['attention_wgmma'],
    'choice.cu': ['attention_wgmma', 'wgmma'],
    'embed.cu': ['small'],
    'gemm.cu': ['gemm'],
    'gemm_choice.cu': ['wgmma'],
    'gemm_int.cu': ['gemm'],
    'gemm_rows.cu': ['gemm'],
    'gemm_wgmma.cu': ['wgmma'],
    'crc32c.cu': ['crc32c'],
    'rmsnorm.cu': ['small'],
    'rope.cu': ['small'],
    'sample.cu': ['sample'],
}

# kind, what to find, what to put there. Comments and preprocessor lines are left alone.
MUTATIONS = [
    ('barrier', r'__syncthreads\(\);', ';'),
    ('barrier', r'__syncwarp\([^()]*\);', ';'),
    ('barrier', r'__threadfence\(\);', ';'),
    ('copy', r'cp_async_wait<(\d+)>\(\);', lambda m: 'cp_async_wait<%d>();' % (int(m[1]) + 1)),
    ('copy', r'cp_async_commit\(\);', ';'),
    ('copy', r'wgmma_wait<(\d+)>\(\);', lambda m: 'wgmma_wait<%d>();' % (int(m[1]) + 1)),
    ('copy', r'wgmma_(?:fence|commit)\(\);', ';'),
    ('barrier', r'barrier_(?:wait|arrive)\(.*\);', ';'),
    ('bound', r' < (?=[A-Za-z0-9_(])', ' <= '),
    ('bound', r' <= (?=[A-Za-z0-9_(])', ' < '),
    ('bound', r' >= (?=[A-Za-z0-9_(])', ' > '),
    ('rounding', r'\bfmaf\(([^(),]+), ([^(),]+), ([^(),]+)\)', r'((\1) * (\2) + (\3) * 1.001f)'),
]


def code_lines(text):
    """(number, line) of lines that hold code, with comments blanked."""
    blank = re.sub(r'/\*.*?\*/', lambda m: re.sub(r'[^\n]', ' ', m[0]), text, flags=re.S)
    return [(i, line) for i, line in enumerate(blank.split('\n'))
            if line.strip() and not line.lstrip().startswith('#') and 'template' not in line
            and 'static_assert' not in line and 'LAUNCH' not in line and 'ASSERT' not in line]


def kernel_lines(text):
    """Numbers of lines inside functions that run on the device."""
    lines, inside, depth, found = text.split('\n'), False, 0, set()
    for i, line in enumerate(lines):
        if depth == 0 and ('__global__' in line or '__device__' in line) and not line.endswith(';'):
            inside = True
        if inside:
            found.add(i)
            depth += line.count('{') - line.count('}')
            if depth == 0 and '}' in line:
                inside = False
    return found


def mutants(path, kinds):
    """(kind, line number, new text) for each single change."""
    text = open(os.path.join(ROOT, CUDA, path)).read()
    lines, device = text.split('\n'), kernel_lines(text)
    for number, code in code_lines(text):
        if number not in device:
            continue
        for kind, pattern, replacement in MUTATIONS:
            if kind not in kinds:
                continue
            for m in re.finditer(pattern, code):
                new = lines[:]
                put = replacement(m) if callable(replacement) else m.expand(replacement)
                new[number] = lines[number][:m.start()] + put + lines[number][m.end():]
                yield kind, number, '\n'.join(new)


def includers(name):
    """The .cu files that include a file, directly or through others."""
    texts = {f: open(os.path.join(ROOT, CUDA, f)).read()
             for f in os.listdir(os.path.join(ROOT, CUDA)) if f.endswith(('.cu', '.cuh'))}
    wanted, grew = {name}, True
    while grew:
        grew = False
        for f, text in texts.items():
            if f not in wanted and any('"%s/%s"' % (CUDA, w) in text for w in wanted):
                wanted.add(f)
                grew = True
    return sorted(f for f in wanted if f in TESTS)


class Builder:
    def __init__(self, build):
        self.build = build
        with open(os.path.join(build, 'compile_commands.json')) as f:
            self.commands = {os.path.basename(c['file']): c for c in json.load(f)
                             if c['file'].endswith('.cu') and 'tarn_cuda_emulated' in c['command']}

    def compile(self, source, overlay, out):
        c = self.commands[source]
        words = shlex.split(c['command'])
        words[words.index('-o') + 1] = out
        words[words.index('-c') + 1] = (os.path.join(overlay, CUDA, source)
                                        if os.path.exists(os.path.join(overlay, CUDA, source))
                                        else c['file'])
        twin = words.index('-I' + os.path.join(source_of(self.build), 'tests/cuda_emulation'))
        words.insert(twin + 1, '-I' + overlay)
        return subprocess.run(words, cwd=c['directory'], capture_output=True).returncode == 0

    def link_line(self, test):
        """How the build links a test: its words, and in which folder."""
        folder = os.path.join(self.build, 'tests/cuda')
        written = os.path.join(folder, 'CMakeFiles/cuda_%s.dir/link.txt' % test)
        if os.path.exists(written):
            with open(written) as f:
                return shlex.split(f.read()), folder
        run = subprocess.run(['ninja', '-t', 'commands', '-s', 'tests/cuda_' + test],
                             cwd=self.build, capture_output=True, text=True, check=True)
        command = run.stdout.strip().removeprefix(': && ').removesuffix(' && :')
        return shlex.split(command), self.build

    def link(self, test, source, obj, out):
        """The test's own link line with one object replaced."""
        words, folder = self.link_line(test)
        words[words.index('-o') + 1] = out
        words = [obj if w.endswith('/%s.o' % source) else w for w in words]
        return subprocess.run(words, cwd=folder, capture_output=True).returncode == 0


def source_of(build):
    """The source tree of a build."""
    with open(os.path.join(build, 'CMakeCache.txt')) as f:
        return re.search(r'^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$', f.read(), re.M)[1]


def run_test(program, seed, limit_s):
    """Run a test program; return its exit status, or 'time' if it took too long."""
    try:
        return subprocess.run([program], capture_output=True, timeout=limit_s,
                              env=dict(os.environ, TARN_EMULATION_SEED=str(seed))).returncode
    except subprocess.TimeoutExpired:
        return 'time'


def failing_tests(build, files, seeds, limit_s):
    """The tests that fail without a mutation, so that they can judge no mutant."""
    tests = {t for f in files for source in ([f] if f.endswith('.cu') else includers(f))
             for t in TESTS[source]}
    return {t for t in tests for seed in seeds
            if run_test(os.path.join(build, 'tests/cuda_' + t), seed, limit_s)}


def try_mutant(builder, path, kind, number, text, seeds, limit_s):
    """'killed by ...', 'survived' or 'does not compile'."""
    with tempfile.TemporaryDirectory() as scratch:
        overlay = os.path.join(scratch, 'overlay')
        os.makedirs(os.path.join(overlay, CUDA))
        with open(os.path.join(overlay, CUDA, path), 'w') as f:
            f.write(text)
        sources = [path] if path.endswith('.cu') else includers(path)
        for source in sources:
            obj = os.path.join(scratch, source + '.o')
            if not builder.compile(source, overlay, obj):
                return 'does not compile'
            for test in TESTS[source]:
                program = os.path.join(scratch, test)
                if not builder.link(test, source, obj, program):
                    return 'does not link'
                for seed in seeds:
                    rc = run_test(program, seed, limit_s)
                    if rc:
                        return 'killed by %s, seed %d%s' % (
                            test, seed, ' (time)' if rc == 'time' else
                            ' (abort)' if rc < 0 else '')
    return 'survived'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--build', required=True)
    parser.add_argument('--only', default='')
    parser.add_argument('--kinds', default='barrier,copy,bound')
    parser.add_argument('--seeds', default='1,2,3')
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--limit-s', type=float, default=600)
    parser.add_argument('--list', action='store_true')
    args = parser.parse_args()
    seeds = [int(s) for s in args.seeds.split(',')]
    files = sorted(f for f in os.listdir(os.path.join(ROOT, CUDA))
                   if f.endswith(('.cu', '.cuh')) and re.search(args.only, f)
                   and (f in TESTS or (f.endswith('.cuh') and f != 'ptx.cuh')))
    jobs = [(f, kind, number, text) for f in files
            for kind, number, text in mutants(f, args.kinds.split(','))]
    if args.list:
        for f, kind, number, text in jobs:
            print('%s:%d %s: %s' % (f, number + 1, kind, text.split('\n')[number].strip()))
        print('%d mutants' % len(jobs))
        return 0
    broken = failing_tests(args.build, {j[0] for j in jobs}, seeds, args.limit_s)
    if broken:
        print('these fail without any mutation: %s' % ', '.join(sorted(broken)))
        return 2
    builder, n_survived, start = Builder(os.path.abspath(args.build)), 0, time.time()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        verdicts = pool.map(lambda j: try_mutant(builder, *j, seeds, args.limit_s), jobs)
        for (f, kind, number, text), verdict in zip(jobs, verdicts):
            n_survived += verdict == 'survived'
            print('%-9s %s:%d %s: %s' % (kind, f, number + 1, verdict,
                                         text.split('\n')[number].strip()), flush=True)
    print('%d mutants, %d survived, %.0f s' % (len(jobs), n_survived, time.time() - start))
    return 1 if n_survived else 0


if __name__ == '__main__':
    sys.exit(main())
