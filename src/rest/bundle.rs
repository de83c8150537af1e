//! Joins the modules and the styles of the dashboard, so that a browser loads each with one request instead of a hundred.
//!
//! A module becomes a method that returns what it exports, and runs when another one first needs it. Styles take the place of the
//! `@import` that names them. Only the forms of `import` and `export` that the dashboard uses are understood, at the beginning of a
//! line; the build fails with any other, and if modules import each other in a circle.

use std::{
    fs,
    io::{self, Error},
};

/// The files of the dashboard that are served with all files that they import.
pub const NAMES: [&str; 2] = ["css/dashboard.css", "js/load.js"];

/// Defines `load`, which returns what a module exports.
const LOADER: &str = "const loaded = {};\nconst load = (name) => (loaded[name] ??= modules[name]());\n";

/// Returns a file of a folder together with all files that it imports.
///
/// # Errors
/// Returns an error if a file cannot be read, or contains a form that this module does not understand.
pub fn join(folder: &str, name: &str) -> io::Result<String> {
    if !name.ends_with(".js") {
        return join_styles(folder, name);
    }
    let mut bundle = Bundle { folder, started: Vec::new(), modules: Vec::new(), text: String::new() };
    bundle.add(name)?;
    Ok(format!("{LOADER}const modules = {{\n{}}};\nload('{name}');\n", bundle.text))
}

fn join_styles(folder: &str, name: &str) -> io::Result<String> {
    let mut text = String::new();
    for line in read(folder, name)?.lines() {
        match line.strip_prefix("@import '").and_then(|rest| rest.strip_suffix("';")) {
            Some(import) => text += &join_styles(folder, &resolve(name, import))?,
            None => text += &format!("{line}\n"),
        }
    }
    Ok(text)
}

/// A script that consists of modules.
struct Bundle<'a> {
    folder: &'a str,
    /// The modules that are being added. Each of them imports the next one.
    started: Vec<String>,
    /// The modules that were added.
    modules: Vec<String>,
    text: String,
}

impl Bundle<'_> {
    /// Adds a module after those that it imports.
    fn add(&mut self, name: &str) -> io::Result<()> {
        if self.modules.iter().any(|module| module == name) {
            return Ok(());
        }
        if self.started.iter().any(|module| module == name) {
            return Err(Error::other(format!("{name} imports itself through {:?}", self.started)));
        }
        self.started.push(name.to_owned());
        let code = read(self.folder, name)?;
        let mut exports = Vec::new();
        let mut later = Vec::new();
        let mut text = String::new();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let mut line = line.to_owned();
            if line.starts_with("import ") {
                while !line.ends_with(';') {
                    line += lines.next().ok_or_else(|| unknown_form(name, &line))?;
                }
                let (names, import) = parse_import(&line).ok_or_else(|| unknown_form(name, &line))?;
                let import = resolve(name, import);
                self.add(&import)?;
                line = format!("const {names} = load('{import}');");
            } else if let Some(exported) = line.strip_prefix("export ") {
                let (export, declaration) = parse_export(exported).ok_or_else(|| unknown_form(name, &line))?;
                exports.push(export);
                line = declaration;
            }
            // A line has at most one dynamic import. Its module follows this one, and runs once the import is evaluated.
            if let Some((before, rest)) = line.split_once("import('") {
                let (import, after) = rest.split_once("')").ok_or_else(|| unknown_form(name, &line))?;
                let import = resolve(name, import);
                line = format!("{before}Promise.resolve().then(() => load('{import}')){after}");
                later.push(import);
            }
            text += &line;
            text.push('\n');
        }
        self.started.pop();
        self.modules.push(name.to_owned());
        self.text += &format!("'{name}'() {{\n{text}return {{ {} }};\n}},\n", exports.join(", "));
        later.iter().try_for_each(|module| self.add(module))
    }
}

/// Parses `import NAMES from 'FILE';`, and returns the names as a pattern that takes them from an object.
fn parse_import(line: &str) -> Option<(String, &str)> {
    let (names, file) = line.strip_prefix("import ")?.strip_suffix("';")?.split_once(" from '")?;
    let names = match (names.strip_prefix("* as "), names.starts_with('{')) {
        (Some(all), _) => all.to_owned(),
        (None, true) => names.replace(" as ", ": "),
        (None, false) => format!("{{ default: {names} }}"),
    };
    Some((names, file))
}

/// Parses what follows `export `, and returns the member of the module's object and the declaration.
fn parse_export(exported: &str) -> Option<(String, String)> {
    if let Some(value) = exported.strip_prefix("default ") {
        return Some(("default: defaultExport".to_owned(), format!("const defaultExport = {value}")));
    }
    let declaration = exported.trim_start_matches("async ");
    let (kind, rest) = declaration.split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())?;
    let member = match kind {
        // Its value may still change, so another module takes it when that module loads.
        "let" => format!("get {name}() {{ return {name}; }}"),
        "const" | "class" | "function" | "function*" => name.to_owned(),
        _ => return None,
    };
    Some((member, exported.to_owned()))
}

/// Returns the path below the folder of what a file imports by a relative path.
fn resolve(from: &str, import: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in import.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

fn read(folder: &str, name: &str) -> io::Result<String> {
    fs::read_to_string(format!("{folder}/{name}")).map_err(|error| Error::other(format!("{name}: {error}")))
}

fn unknown_form(name: &str, line: &str) -> Error {
    Error::other(format!("{name} has a form of import or export that the bundle does not understand: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bundles these files, the first of which imports the others.
    fn bundle(files: &[(&str, &str)]) -> io::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, code) in files {
            fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
            fs::write(folder.path().join(name), code).unwrap();
        }
        join(folder.path().to_str().unwrap(), files[0].0)
    }

    #[test]
    fn modules_return_what_they_export() {
        let start = "import { one,\n  two as zwei } from './core/a.js';\nimport texts from './core/texts.js';\nimport('./later.js').then(zwei);\n";
        let a = "export const one = 1;\nexport async function two() {}\nexport let three = 3;\n";
        let files = [
            ("js/start.js", start),
            ("js/core/a.js", a),
            ("js/core/texts.js", "export default {\n};\n"),
            ("js/later.js", "import * as a from './core/a.js';\nexport class Late {}\n"),
        ];
        let modules = "'js/core/a.js'() {\nconst one = 1;\nasync function two() {}\nlet three = 3;\n\
            return { one, two, get three() { return three; } };\n},\n\
            'js/core/texts.js'() {\nconst defaultExport = {\n};\nreturn { default: defaultExport };\n},\n\
            'js/start.js'() {\nconst { one,  two: zwei } = load('js/core/a.js');\n\
            const { default: texts } = load('js/core/texts.js');\n\
            Promise.resolve().then(() => load('js/later.js')).then(zwei);\nreturn {  };\n},\n\
            'js/later.js'() {\nconst a = load('js/core/a.js');\nclass Late {}\nreturn { Late };\n},\n";
        assert_eq!(
            bundle(&files).unwrap(),
            format!("{LOADER}const modules = {{\n{modules}}};\nload('js/start.js');\n")
        );
    }

    #[test]
    fn styles_take_the_place_of_their_import() {
        let files = [("css/all.css", "/* All */\n@import './a.css';\n"), ("css/a.css", "a { }\n")];
        assert_eq!(bundle(&files).unwrap(), "/* All */\na { }\n");
    }

    #[test]
    fn unknown_forms_and_circles_are_refused() {
        for (code, problem) in [
            ("import './a.js';\n", "does not understand: import './a.js';"),
            ("export * from './a.js';\n", "does not understand: export *"),
            ("export { a };\n", "does not understand: export {"),
            ("import { a } from './b.js';\n", "js/b.js: No such file"),
            ("import { a } from './a.js';\n", "imports itself"),
        ] {
            let error = bundle(&[("js/a.js", code)]).unwrap_err().to_string();
            assert!(error.contains(problem), "{code}: {error}");
        }
    }
}
