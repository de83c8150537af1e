//! Reads the settings of a server from a form, without its secrets.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Problem;
use countersign_config::{
    UpstreamConfig,
    edit::{
        self,
        hidden::{hide_secrets, restore_secrets},
        references::{replace_secrets, variables_in},
    },
    tree::{KeyValue, Node, entries_from_json, find_value},
};

/// Returns the settings of a form, with references in place of new secrets. Secrets of the file remain placeholders. `text` is
/// that of the file.
pub(super) fn settings_from_form(name: &str, settings: &serde_json::Map<String, Value>, text: &str) -> Vec<KeyValue> {
    let mut settings = entries_from_json(settings);
    replace_secrets(name, &mut settings, &variables_in(text));
    settings
}

/// Returns the settings of a form with the old secrets that were hidden. They are kept only if nothing of the connection
/// changes: besides the command and the address, an argument may name another program, and a variable or a header may lead
/// elsewhere (`HTTPS_PROXY`, `API_URL`, `Host`), whether it is added, changed or removed.
pub(super) fn with_old_secrets(shown: &[KeyValue], old: &[KeyValue]) -> Result<Vec<KeyValue>, Problem> {
    let mut settings = shown.to_vec();
    let recipient = |settings: &[KeyValue]| {
        let keys = edit::connection_settings(settings).into_iter().filter(|setting| setting.key != "tools");
        keys.map(|setting| (setting.key, setting.value.node.to_json())).collect::<BTreeMap<_, _>>()
    };
    let old = if recipient(&settings) == recipient(&hide_secrets(old)) { old } else { &[] };
    restore_secrets(&mut settings, old).map_err(|key| {
        let message = format!(
            "`{key}` has a placeholder for a secret that is missing, or that another program, address or variable could lead \
             elsewhere; enter it again, as a reference"
        );
        Problem::invalid(message)
    })?;
    Ok(settings)
}

fn disabled_key(settings: &[KeyValue]) -> Option<&Node> {
    find_value(settings, "disabled")
}

/// Returns `true` if the server certainly does not run.
pub(super) fn is_disabled(settings: &[KeyValue]) -> bool {
    matches!(disabled_key(settings), Some(Node::Bool(true)))
}

/// Returns `true` if nothing disables the server, not even a variable.
pub(super) fn is_enabled(settings: &[KeyValue]) -> bool {
    matches!(disabled_key(settings), None | Some(Node::Bool(false)))
}

/// Returns `true` if both configurations have the same command or address, including the values of variables and headers.
pub(super) fn has_same_target(one: &UpstreamConfig, two: &UpstreamConfig) -> bool {
    one.target == two.target && one.authorities == two.authorities && one.oauth == two.oauth
}
