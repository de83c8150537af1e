//! `path_within(path, folder)`, and the detection of conditions that compare paths as plain text.

use cel::{
    ExecutionError, IdedExpr,
    common::{
        ast::{CallExpr, Expr, LiteralValue, operators},
        types::CelString,
        value::CowVal,
    },
};
use unicode_normalization::UnicodeNormalization;

use super::{
    Answer, Arguments,
    compare::{cel_bool, type_mismatch},
    two_arguments,
};

pub(super) const PATH_WITHIN: &str = "path_within";

/// Words in the name of an argument that indicate a path.
const PATH_WORDS: [&str; 22] = [
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "filenames",
    "filepath",
    "filepaths",
    "dir",
    "dirs",
    "directory",
    "directories",
    "folder",
    "folders",
    "uri",
    "uris",
    "source",
    "src",
    "destination",
    "dest",
    "dst",
    "cwd",
];

/// Returns `true` if the path is the folder or below it. Only names are compared; links are not followed.
pub(super) fn path_within<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (path, folder) = two_arguments(args)?;
    let text = |value: &CowVal<'b, 'v>| -> Result<String, ExecutionError> {
        value.downcast_ref::<CelString<'_>>().map(|text| text.inner().to_owned()).ok_or_else(type_mismatch)
    };
    let (path, folder) = (text(&path)?, text(&folder)?);
    let unsafe_path = || ExecutionError::function_error(PATH_WITHIN, "");
    let (path, folder) =
        (path_components(&path).ok_or_else(unsafe_path)?, path_components(&folder).ok_or_else(unsafe_path)?);
    let is_within = path.starts_with(&folder);
    // Some servers and file systems treat the Unicode forms of a name as one name, others as several.
    if !is_within && is_equivalent_within(&path, &folder) {
        return Err(unsafe_path());
    }
    Ok(cel_bool(is_within))
}

/// Returns `true` if the path is the folder or below it once the names of both are in the same Unicode form.
fn is_equivalent_within(path: &[&str], folder: &[&str]) -> bool {
    path.len() >= folder.len() && path.iter().zip(folder).all(|(&name, &expected)| name.nfc().eq(expected.nfc()))
}

/// Returns the components of an absolute path, or `None` if it could lead elsewhere than it seems.
pub(in crate::policy) fn path_components(path: &str) -> Option<Vec<&str>> {
    if !path.starts_with('/') || path.contains(['\0', '\\']) {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.contains(&"..")).then_some(parts)
}

/// Checks the arguments of a call at compile time.
///
/// # Errors
/// The mistake in a call that would fail for any arguments.
pub(super) fn check_call(call: &CallExpr) -> Result<(), String> {
    const FORM: &str = r#"write path_within(arguments.path, "/notes")"#;
    let (None, [_, folder]) = (&call.target, call.args.as_slice()) else {
        return Err(format!("path_within takes a path and a folder: {FORM}"));
    };
    match &folder.expr {
        Expr::Literal(LiteralValue::String(text)) if path_components(text.inner()).is_some() => Ok(()),
        Expr::Literal(_) => Err(format!(
            "the folder of path_within must be an absolute path without `..`, a NUL or a backslash: {FORM}"
        )),
        _ => Ok(()),
    }
}

/// Returns the argument, as it is written, whose prefix a call of `startsWith` compares although its name indicates a
/// path. `paths` are the variables of loops over such arguments.
pub(super) fn path_compared_as_text(call: &CallExpr, paths: &[String]) -> Option<String> {
    if call.func_name != "startsWith" {
        return None;
    }
    path_source_text(call.target.as_deref()?, paths)
}

/// Returns the source text of an operand that holds a path or a list of paths.
pub(super) fn path_source_text(operand: &IdedExpr, paths: &[String]) -> Option<String> {
    match &operand.expr {
        Expr::Ident(name) => paths.contains(name).then(|| name.clone()),
        Expr::Select(select) if is_from_arguments(&select.operand) => {
            is_path_name(&select.field).then(|| format!("{}.{}", source_text(&select.operand), select.field))
        }
        Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
            [holder, key] => match &key.expr {
                Expr::Literal(LiteralValue::String(key)) if is_from_arguments(holder) => {
                    is_path_name(key.inner()).then(|| format!("{}[{:?}]", source_text(holder), key.inner()))
                }
                // An element of a list of paths.
                _ => path_source_text(holder, paths).map(|holder| format!("{holder}[…]")),
            },
            _ => None,
        },
        // A charging call wraps the operand that was written.
        Expr::Call(call) if call.func_name.starts_with('@') => path_source_text(call.args.first()?, paths),
        _ => None,
    }
}

fn is_from_arguments(operand: &IdedExpr) -> bool {
    match &operand.expr {
        Expr::Ident(name) => name == "arguments",
        Expr::Select(select) => is_from_arguments(&select.operand),
        Expr::Call(call) => call.args.first().is_some_and(is_from_arguments),
        _ => false,
    }
}

fn source_text(operand: &IdedExpr) -> String {
    match &operand.expr {
        Expr::Ident(name) => name.clone(),
        Expr::Select(select) => format!("{}.{}", source_text(&select.operand), select.field),
        _ => "…".to_owned(),
    }
}

/// Returns `true` for names such as `old_path`, `targetFile` and `file-name`, but not for `profile`.
fn is_path_name(name: &str) -> bool {
    let mut word = String::new();
    let mut words = Vec::new();
    for c in name.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
    }
    words.push(word);
    words.iter().any(|word| PATH_WORDS.contains(&word.as_str())) || PATH_WORDS.contains(&name.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use crate::policy::{
        Condition,
        condition::tests::{fault, holds, is_unknown},
    };

    fn arguments(path: &str) -> String {
        serde_json::json!({ "path": path }).to_string()
    }

    #[test]
    fn path_within_compares_whole_components() {
        for (path, folder, expected) in [
            ("/notes/a.md", "/notes", true),
            ("/notes/a.md", "/notes/", true),
            ("/notes", "/notes", true),
            ("/notes/", "/notes", true),
            ("//notes//deep/./x", "/notes/deep", true),
            ("/./notes/x", "//notes/.", true),
            ("/notes2", "/notes", false),
            ("/notes2/x", "/notes", false),
            ("/note", "/notes", false),
            ("/Notes/x", "/notes", false),
            ("/etc/notes/x", "/notes", false),
            ("/", "/notes", false),
            ("/anything", "/", true),
            ("/", "/", true),
            // Escapes are not decoded, so these are ordinary names.
            ("/notes/%2e%2e/etc", "/notes", true),
            ("/%6eotes/x", "/notes", false),
            ("/notes/...", "/notes", true),
            ("/notes/..x", "/notes", true),
        ] {
            let condition = format!("path_within(arguments.path, {folder:?})");
            assert_eq!(holds(&condition, &arguments(path)), Ok(expected), "{path} in {folder}");
            assert_eq!(holds(&format!("!{condition}"), &arguments(path)), Ok(!expected), "{path} in {folder}");
        }
    }

    #[test]
    fn unsafe_path_makes_condition_fail() {
        for path in [
            "",
            "notes/x",
            "./notes/x",
            "~/notes",
            "../notes",
            "/notes/../etc/cron.d/x",
            "/notes/..",
            "/..",
            "/notes\\..\\etc",
            "C:\\notes",
            "/notes/\0/x",
            "file:///notes/x",
        ] {
            for condition in [r#"path_within(arguments.path, "/notes")"#, r#"!path_within(arguments.path, "/notes")"#] {
                assert!(is_unknown(condition, &arguments(path)), "{condition} of {path:?}");
            }
        }
        let message = fault(r#"path_within(arguments.path, "/notes")"#, &arguments("/notes/../secret")).to_string();
        assert!(message.contains("`..`") && !message.contains("secret"), "{message}");
        for path in [r#"["/notes/x"]"#, "5", "null", "{}", "true"] {
            let arguments = format!(r#"{{"path":{path}}}"#);
            assert!(is_unknown(r#"path_within(arguments.path, "/notes")"#, &arguments), "{path}");
        }
        // The folder may be an argument too, and an invalid one is an error.
        let two = r#"{"path":"/a/b","folder":"/a","bad":"a"}"#;
        assert_eq!(holds("path_within(arguments.path, arguments.folder)", two), Ok(true));
        assert!(is_unknown("path_within(arguments.path, arguments.bad)", two));
    }

    #[test]
    fn folder_in_another_unicode_form_has_no_result() {
        let condition = |folder: &str| format!(r#"path_within(arguments.path, "{folder}")"#);
        for (path, folder) in [
            ("/x/prive\u{301}/secret.txt", "/x/priv\u{e9}"),
            ("/x/priv\u{e9}", "/x/prive\u{301}/"),
            ("/x/a\u{302}\u{323}/b", "/x/a\u{323}\u{302}"),
            // The Kelvin sign is equivalent to the letter.
            ("/\u{212a}eys/a", "/Keys"),
        ] {
            for condition in [condition(folder), format!("!{}", condition(folder))] {
                assert!(is_unknown(&condition, &arguments(path)), "{condition} of {path}");
            }
        }
        for (path, folder, expected) in [
            ("/x/prive\u{301}/secret.txt", "/x/prive\u{301}", true),
            ("/x/priv\u{e9}/prive\u{301}", "/x/priv\u{e9}", true),
            ("/x/prive\u{301}s/secret.txt", "/x/priv\u{e9}", false),
            ("/x/prive/secret.txt", "/x/priv\u{e9}", false),
            ("/x", "/x/priv\u{e9}", false),
        ] {
            assert_eq!(holds(&condition(folder), &arguments(path)), Ok(expected), "{path} in {folder}");
        }
    }

    #[test]
    fn path_within_with_bad_folder_is_refused() {
        for source in [
            "path_within(arguments.path)",
            r#"path_within(arguments.path, "notes")"#,
            r#"path_within(arguments.path, "/notes/..")"#,
            "path_within(arguments.path, 5)",
            r#"arguments.path.path_within("/notes")"#,
        ] {
            let error = Condition::compile(source).unwrap_err();
            assert!(error.message.contains("path_within"), "{source}: {error}");
            assert_eq!(error.line, 1, "{source}: {error:?}");
        }
    }

    #[test]
    fn paths_compared_as_text_are_reported() {
        let compared_paths = |source: &str| Condition::compile(source).unwrap().facts().paths_compared_as_text.clone();
        for (source, expected) in [
            (r#"arguments.path.startsWith("/notes/")"#, "arguments.path"),
            (r#"has(arguments.path) && arguments.path.startsWith("/notes/")"#, "arguments.path"),
            (r#"arguments["path"].startsWith("/notes/")"#, r#"arguments["path"]"#),
            (r#"arguments.sourceFile.startsWith("/a")"#, "arguments.sourceFile"),
            (r#"arguments.new_path.startsWith("/a")"#, "arguments.new_path"),
            (r#"arguments.options.dir.startsWith("/a")"#, "arguments.options.dir"),
            (r#"arguments.uri.startsWith("file:///notes/")"#, "arguments.uri"),
            (r#"arguments.paths.all(p, p.startsWith("/a"))"#, "p"),
            (r#"arguments.paths[0].startsWith("/a")"#, "arguments.paths[…]"),
            (r#"!(arguments.destination.startsWith("/a"))"#, "arguments.destination"),
        ] {
            assert_eq!(compared_paths(source), [expected], "{source}");
        }
        for source in [
            r#"arguments.title.startsWith("/a")"#,
            r#"arguments.profile.startsWith("a")"#,
            r#"arguments.path.endsWith(".md")"#,
            r#"path_within(arguments.path, "/notes")"#,
            r#"tool.name.startsWith("file_")"#,
            r#"arguments.tags.all(p, p.startsWith("a"))"#,
        ] {
            assert!(compared_paths(source).is_empty(), "{source}");
        }
    }
}
