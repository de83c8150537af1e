//! Reads the settings of a server from a form, without its secrets.

use serde_json::Value;

use super::Problem;
use countersign_config::{
    UpstreamConfig,
    edit::{
        self, Settings,
        hidden::{hide_secrets, restore_secrets},
        references::{replace_secrets, variables_in},
    },
};

/// Returns the settings of a form, with references in place of new secrets. Secrets of the file remain placeholders. `text` is
/// that of the file.
pub(super) fn settings_from_form(name: &str, mut settings: Settings, text: &str) -> Settings {
    replace_secrets(name, &mut settings, &variables_in(text));
    settings
}

/// Returns the settings of a form with the old secrets that were hidden. They are kept only if nothing of the connection
/// changes: besides the command and the address, an argument may name another program, and a variable or a header may lead
/// elsewhere (`HTTPS_PROXY`, `API_URL`, `Host`), whether it is added, changed or removed.
pub(super) fn with_old_secrets(shown: &Settings, old: &Settings) -> Result<Settings, Problem> {
    let mut settings = shown.clone();
    let recipient = |settings: &Settings| {
        let mut keys = edit::connection_settings(settings);
        keys.shift_remove("tools");
        keys
    };
    let no_secrets = Settings::new();
    let old = if recipient(&settings) == recipient(&hide_secrets(old)) { old } else { &no_secrets };
    restore_secrets(&mut settings, old).map_err(|key| {
        let message = format!(
            "`{key}` has a placeholder for a secret that is missing, or that another program, address or variable could lead \
             elsewhere; enter it again, as a reference"
        );
        Problem::invalid(message)
    })?;
    Ok(settings)
}

/// Returns `true` if the server certainly does not run.
pub(super) fn is_disabled(settings: &Settings) -> bool {
    matches!(settings.get("disabled"), Some(Value::Bool(true)))
}

/// Returns `true` if nothing disables the server, not even a variable.
pub(super) fn is_enabled(settings: &Settings) -> bool {
    matches!(settings.get("disabled"), None | Some(Value::Bool(false)))
}

/// Returns `true` if both configurations have the same command or address, including the values of variables and headers.
pub(super) fn has_same_target(one: &UpstreamConfig, two: &UpstreamConfig) -> bool {
    one.target == two.target && one.authorities == two.authorities && one.oauth == two.oauth
}
