//! The bodies of successful responses.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::exit::{Exit, Failure};
use countersign_domain::changes::Change;

/// The body of a successful response.
pub struct ResponseBody(pub(super) Vec<u8>);

impl ResponseBody {
    /// Parses the JSON. Changes are parsed with [`Self::read_change`].
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(self.text()?).map_err(unexpected_response)
    }

    /// Parses the JSON of a change.
    pub fn read_change(&self) -> Result<Change, Failure> {
        Change::from_json(self.text()?).map_err(unexpected_response)
    }

    /// Returns the JSON exactly as the gateway sent it.
    pub fn json_line(&self) -> Result<String, Failure> {
        let value: &RawValue = serde_json::from_str(self.text()?).map_err(unexpected_response)?;
        Ok(value.get().to_owned())
    }

    /// Returns the body as text, which JSON must be.
    fn text(&self) -> Result<&str, Failure> {
        std::str::from_utf8(&self.0).map_err(unexpected_response)
    }
}

/// Returns the failure for a response that is not one of a gateway.
pub fn unexpected_response(error: impl fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("the response is not from a Countersign gateway ({error})"))
}
