//! The format of a field's content, which decides in which form reviewers see it.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

/// The format of a field's content.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum FieldFormat {
    #[default]
    Text,
    /// A unified diff.
    Diff,
    /// Source code; [`super::FieldDiff::language`] names its language.
    Code,
    Markdown,
    Json,
    Yaml,
    Sql,
    /// A JSON array of objects, shown as a table.
    Rows,
    /// An image in Base64, with or without the prefix of a `data:` URL.
    Image,
    /// The people or channels that something is sent to: a JSON array, or addresses separated by commas.
    Recipients,
}

impl FieldFormat {
    pub const VARIANTS: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns the name in configuration and API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns `true` for the format that needs no special form.
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Text)
    }

    /// Returns the format and the language of a file by its name, or `None` if the name does not tell.
    pub fn from_path(path: &str) -> Option<(Self, Option<&'static str>)> {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let extension = match name.rsplit_once('.') {
            Some((_, extension)) => extension,
            None => name,
        };
        let code = |language| Some((Self::Code, Some(language)));
        match extension.to_ascii_lowercase().as_str() {
            "md" | "markdown" | "mdx" => Some((Self::Markdown, None)),
            "json" | "jsonc" | "geojson" | "webmanifest" => Some((Self::Json, None)),
            "yaml" | "yml" => Some((Self::Yaml, None)),
            "sql" => Some((Self::Sql, None)),
            "diff" | "patch" => Some((Self::Diff, None)),
            "rs" => code("rust"),
            "js" | "mjs" | "cjs" | "jsx" => code("javascript"),
            "ts" | "mts" | "cts" | "tsx" => code("typescript"),
            "py" | "pyi" => code("python"),
            "go" => code("go"),
            "java" => code("java"),
            "kt" | "kts" => code("kotlin"),
            "swift" => code("swift"),
            "c" | "h" | "cc" | "cpp" | "cxx" | "hpp" => code("c"),
            "cs" => code("csharp"),
            "rb" | "rake" | "gemfile" => code("ruby"),
            "php" => code("php"),
            "sh" | "bash" | "zsh" => code("shell"),
            "toml" => code("toml"),
            "css" | "scss" | "less" => code("css"),
            "html" | "htm" | "xml" | "svg" | "vue" | "svelte" => code("html"),
            "tf" | "hcl" => code("hcl"),
            "dockerfile" | "makefile" | "ini" | "conf" | "env" | "properties" => code("shell"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_follows_from_the_name_of_a_file() {
        let cases = [
            ("docs/README.md", Some((FieldFormat::Markdown, None))),
            ("C:\\work\\Main.RS", Some((FieldFormat::Code, Some("rust")))),
            ("a.b/values.yml", Some((FieldFormat::Yaml, None))),
            ("Dockerfile", Some((FieldFormat::Code, Some("shell")))),
            ("a.md/notes", None),
            ("photo.png", None),
            ("", None),
        ];
        for (path, format) in cases {
            assert_eq!(FieldFormat::from_path(path), format, "{path}");
        }
    }

    #[test]
    fn names_in_configuration_and_api_are_equal() {
        for format in FieldFormat::VARIANTS {
            assert_eq!(serde_json::to_value(format).unwrap(), format.as_str());
        }
    }
}
