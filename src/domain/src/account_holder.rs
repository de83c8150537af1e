//! The holder of an account at a server.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The holder of an account at a server. It is written as the name of the person, or as an empty text for the gateway, and is
/// created from such a text, so that no person has the empty name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum AccountHolder {
    /// The person with that key ([`person_key`](crate::changes::person::person_key) of the principal's `person_name`), or
    /// this machine's one user in `auth.mode: local`.
    Person(Arc<str>),
    /// The gateway, whose account everybody uses.
    Gateway,
}

impl AccountHolder {
    /// Returns the name of the person, or an empty text for the gateway.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Person(name) => name,
            Self::Gateway => "",
        }
    }
}

impl From<&str> for AccountHolder {
    fn from(name: &str) -> Self {
        if name.is_empty() { Self::Gateway } else { Self::Person(name.into()) }
    }
}

impl From<String> for AccountHolder {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<AccountHolder> for String {
    fn from(holder: AccountHolder) -> Self {
        holder.as_str().to_owned()
    }
}
