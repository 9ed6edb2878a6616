/**
 * Compiles an archive of Python packages with Pyodide's own Python, so that a browser need not: node compile_packages.mjs ENGINE FROM TO.
 * ENGINE: the folder of Pyodide. What it writes depends on the archive alone.
 */
import { readFileSync, writeFileSync } from "node:fs";

const [folder, from, to] = process.argv.slice(2);
const { loadPyodide } = await import(`${folder}pyodide.mjs`);
const python = await loadPyodide({ indexURL: folder });
python.FS.writeFile("/from.zip", readFileSync(from));
python.runPython(`
import py_compile
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

with ZipFile("/from.zip") as plain, ZipFile("/to.zip", "w", ZIP_DEFLATED) as compiled:
    for name in plain.namelist():
        content = plain.read(name)
        compiled.writestr(ZipInfo(name), content, ZIP_DEFLATED)
        if name.endswith(".py"):
            Path("/one.py").write_bytes(content)
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile("/one.py", "/one.pyc", f"/fourfold/{name}", doraise=True, invalidation_mode=mode)
            found = Path(name)
            beside = found.parent / "__pycache__" / f"{found.stem}.cpython-314.pyc"
            compiled.writestr(ZipInfo(str(beside)), Path("/one.pyc").read_bytes(), ZIP_DEFLATED)
`);
writeFileSync(to, python.FS.readFile("/to.zip"));
