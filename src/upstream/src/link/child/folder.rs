//! The folder that a server works in where its configuration names none.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::link::LinkError;

/// The folder that a server works in where the configuration names none: made for it alone.
pub(super) fn own_folder(data: &Path, name: &str) -> Result<PathBuf, LinkError> {
    let folder = data.join("servers").join(slug(name));
    let failed = |error| LinkError::Unreachable(format!("no working directory {}: {error}", folder.display()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    Ok(folder)
}

/// A name as the name of a folder: lower case, `[a-z0-9.-]`, and never `.` or `..`.
fn slug(name: &str) -> String {
    let slug: String = name
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if matches!(c, 'a'..='z' | '0'..='9' | '.' | '-') { c } else { '-' })
        .collect();
    if slug.bytes().all(|b| b == b'.') { "-".repeat(slug.len().max(1)) } else { slug }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stays_in_the_data_directory() {
        for (name, folder) in [
            ("GitHub", "github"),
            ("a/b c", "a-b-c"),
            ("..", "--"),
            (".", "-"),
            ("", "-"),
            ("../../etc", "..-..-etc"),
            ("é.1", "-.1"),
        ] {
            assert_eq!(slug(name), folder);
        }
        let data = tempfile::tempdir().unwrap();
        let folder = own_folder(data.path(), "..").unwrap();
        assert_eq!(folder, data.path().join("servers/--"));
        for path in [&folder, &data.path().join("servers")] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(own_folder(data.path(), "..").unwrap(), folder);
    }
}
