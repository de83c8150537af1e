//! Reads the claims of a token strictly, and checks them against the gateway's audiences and the time. They come from a
//! JWT or from an answer of its issuer.

use jiff::SignedDuration;
use serde_json::{Map, Value, value::RawValue};

use super::TokenRefusal;
use countersign_protocol::arguments;

/// The tolerated difference between the clocks of an issuer and the gateway, in seconds.
pub(super) const MAX_SKEW: i64 = 60;
/// The last second that a [`jiff::Timestamp`] can hold. A later time is a mistake, such as one in milliseconds.
const MAX_TIME: i64 = 253_402_207_200;
/// The maximum nesting of claims and headers.
const MAX_DEPTH: usize = 32;
/// Claims that only ID tokens have (OpenID Connect Core 1.0, sections 2 and 3.3.2.11).
const ID_TOKEN_CLAIMS: [&str; 4] = ["nonce", "at_hash", "c_hash", "s_hash"];
/// Claims about a sign-in. ID tokens have them, and so do access tokens that are issued to people, which also have a
/// scope.
const SIGN_IN_CLAIMS: [&str; 2] = ["auth_time", "sid"];
/// The claims with the client's id, in order of preference: of RFC 9068, of OpenID Connect and Keycloak, of Okta, and
/// of Entra ID.
const CLIENT_CLAIMS: [&str; 4] = ["client_id", "azp", "cid", "appid"];

/// Parses the text of a JSON object. Refuses duplicate members, which two readers could understand differently.
pub(super) fn parse_object(json: &str) -> Result<Map<String, Value>, TokenRefusal> {
    let malformed = || TokenRefusal::invalid("the token is malformed: it does not consist of JSON objects");
    let raw: &RawValue = serde_json::from_str(json).map_err(|_| malformed())?;
    arguments::check(raw, MAX_DEPTH)
        .map_err(|_| TokenRefusal::invalid("the token is malformed: a member is repeated, or nested too deeply"))?;
    json.parse().map_err(|_| malformed())
}

/// The claims of a token.
pub(super) struct TokenClaims {
    /// The claims as JSON text.
    pub json: String,
    members: Map<String, Value>,
}

impl TokenClaims {
    /// Parses the text of an object.
    pub(super) fn parse(json: String) -> Result<Self, TokenRefusal> {
        let members = parse_object(&json)?;
        Ok(Self { json, members })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Returns the names of the claims that are not `null`.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Returns a claim that must be a non-empty string.
    pub(super) fn string(&self, name: &'static str) -> Result<Option<&str>, TokenRefusal> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(TokenRefusal::invalid(format!("the token's `{name}` is not a non-empty string"))),
        }
    }

    /// Returns the strings of a claim that is a string or an array. Other values are ignored.
    pub(super) fn strings(&self, name: &str) -> Vec<&str> {
        match self.get(name) {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns a claim that must be a time, in seconds since 1970.
    fn time(&self, name: &'static str) -> Result<Option<i64>, TokenRefusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let seconds = value.as_i64().or_else(|| {
            let duration = SignedDuration::try_from_secs_f64(value.as_f64()?).ok()?;
            Some(duration.as_secs())
        });
        match seconds {
            Some(seconds) if (0..=MAX_TIME).contains(&seconds) => Ok(Some(seconds)),
            _ => Err(TokenRefusal::invalid(format!("the token's `{name}` is not a time"))),
        }
    }

    /// Returns the time at which the person authenticated, in seconds and at most `now`. A malformed time counts as
    /// missing.
    pub(super) fn auth_time(&self, now: i64) -> Option<i64> {
        self.time("auth_time").ok().flatten().map(|time| time.min(now))
    }

    /// Returns the authentication context class of the sign-in. A malformed one counts as missing.
    pub(super) fn acr(&self) -> Option<String> {
        self.string("acr").ok().flatten().map(str::to_owned)
    }

    /// Returns the client to which the token was issued.
    pub(super) fn client(&self) -> Result<Option<&str>, TokenRefusal> {
        for name in CLIENT_CLAIMS {
            if let Some(client) = self.string(name)? {
                return Ok(Some(client));
            }
        }
        Ok(None)
    }

    /// Checks the claims of a JWT, except for its issuer. Returns the second from which the token is no longer valid.
    /// With `is_access_token`, the header has already excluded other kinds of tokens.
    pub(super) fn check_jwt(&self, audiences: &[String], is_access_token: bool, now: i64) -> Result<i64, TokenRefusal> {
        self.check_use()?;
        if !is_access_token {
            self.check_is_not_id_token()?;
        }
        self.check_audience(audiences)?;
        self.check_start(now)?;
        let end = self.time("exp")?.ok_or_else(|| TokenRefusal::invalid("the token has no `exp`"))?;
        check_end(end, now)
    }

    /// Checks the claims in the issuer's answer about an active token (RFC 7662, section 2.2). Returns the second from
    /// which the token is no longer valid.
    pub(super) fn check_introspected(&self, issuer: &str, audiences: &[String], now: i64) -> Result<i64, TokenRefusal> {
        if self.string("iss")?.is_some_and(|other| other != issuer) {
            return Err(TokenRefusal::invalid("the token is from another issuer"));
        }
        self.check_use()?;
        self.check_audience(audiences)?;
        self.check_start(now)?;
        self.time("exp")?.map_or(Ok(i64::MAX), |end| check_end(end, now))
    }

    /// Checks that a token is from `issuer`, for `client`, and valid now (OpenID Connect Core 1.0, section 3.1.3.7).
    /// Returns the second from which it is no longer valid.
    pub(super) fn check_for_client(&self, issuer: &str, client: &str, now: i64) -> Result<i64, TokenRefusal> {
        if self.string("iss")? != Some(issuer) {
            return Err(TokenRefusal::invalid("the token is from another issuer"));
        }
        self.check_audience(&[client.to_owned()])?;
        let authorized = self.string("azp")?;
        if self.strings("aud").len() > 1 && authorized.is_none() {
            return Err(TokenRefusal::invalid("the token has several audiences and no `azp`"));
        }
        if authorized.is_some_and(|other| other != client) {
            return Err(TokenRefusal::invalid("the token was issued to another client"));
        }
        self.check_start(now)?;
        self.time("iat")?.ok_or_else(|| TokenRefusal::invalid("the token has no `iat`"))?;
        check_end(self.time("exp")?.ok_or_else(|| TokenRefusal::invalid("the token has no `exp`"))?, now)
    }

    /// Adds the claims of another document that are missing here.
    pub(super) fn add_missing_claims(mut self, other: &Self) -> Self {
        for (name, value) in &other.members {
            if self.get(name).is_none() {
                self.members.insert(name.clone(), value.clone());
            }
        }
        self.json = Value::Object(self.members.clone()).to_string();
        self
    }

    /// Removes the claims with these names.
    pub(super) fn remove_claims(mut self, names: &[&str]) -> Self {
        self.members.retain(|name, _| !names.contains(&name.as_str()));
        self.json = Value::Object(self.members.clone()).to_string();
        self
    }

    /// Rejects tokens that must not be used as bearer tokens.
    fn check_use(&self) -> Result<(), TokenRefusal> {
        // Amazon Cognito and Ory Hydra state the kind of each token in this claim. All kinds are signed with the same
        // key, and may have the same audience.
        if self.string("token_use")?.is_some_and(|kind| !matches!(kind, "access" | "access_token")) {
            return Err(TokenRefusal::invalid("the token is not an access token: see its `token_use`"));
        }
        // Only answers of the issuer have this claim.
        let is_bearer = |kind: &str| {
            ["bearer", "access_token", "urn:ietf:params:oauth:token-type:access_token"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(kind))
        };
        if self.string("token_type")?.is_some_and(|kind| !is_bearer(kind)) {
            return Err(TokenRefusal::invalid("the token is not a bearer token: see its `token_type`"));
        }
        // Keycloak marks its tokens so. A refresh token that is presented here has leaked.
        let is_other =
            |kind: &str| ["id", "refresh", "offline", "logout"].iter().any(|other| other.eq_ignore_ascii_case(kind));
        if self.strings("typ").into_iter().any(is_other) {
            return Err(TokenRefusal::invalid("the token is not an access token: see its `typ`"));
        }
        // A bound token (RFC 8705, RFC 9449) is useless to a thief only if it is never accepted without its proof.
        if self.get("cnf").is_some() {
            return Err(TokenRefusal::invalid(
                "the token is bound to a key, and the gateway accepts bearer tokens only",
            ));
        }
        Ok(())
    }

    /// Rejects ID tokens and logout tokens, which have the same key and form as access tokens. They tell a client who
    /// signed in, and the client must not be able to act as that person.
    fn check_is_not_id_token(&self) -> Result<(), TokenRefusal> {
        if ID_TOKEN_CLAIMS.iter().any(|name| self.get(name).is_some()) {
            return Err(TokenRefusal::invalid("the token is an ID token, and an access token is needed"));
        }
        if self.get("events").is_some() {
            return Err(TokenRefusal::invalid("the token reports an event, and an access token is needed"));
        }
        let has_scope = ["scope", "scp"].iter().any(|name| self.get(name).is_some());
        if !has_scope && SIGN_IN_CLAIMS.iter().any(|name| self.get(name).is_some()) {
            return Err(TokenRefusal::invalid("the token describes a sign-in and has no scope, like an ID token"));
        }
        let (audiences, client) = (self.strings("aud"), self.client()?);
        if !has_scope && client.is_none() {
            return Err(TokenRefusal::invalid("the token has neither a scope nor a client, like an ID token"));
        }
        if client.is_some_and(|client| audiences.iter().all(|audience| *audience == client)) {
            return Err(TokenRefusal::invalid("the token's only audience is its own client, as in an ID token"));
        }
        Ok(())
    }

    fn check_audience(&self, audiences: &[String]) -> Result<(), TokenRefusal> {
        let is_malformed = match self.get("aud") {
            None => return Err(TokenRefusal::invalid("the token has no `aud`")),
            Some(Value::Array(items)) => !items.iter().all(Value::is_string),
            Some(value) => !value.is_string(),
        };
        if is_malformed {
            return Err(TokenRefusal::invalid("the token's `aud` is neither a string nor an array of strings"));
        }
        if !self.strings("aud").into_iter().any(|audience| audiences.iter().any(|ours| ours == audience)) {
            return Err(TokenRefusal::invalid("the token is for another audience"));
        }
        Ok(())
    }

    fn check_start(&self, now: i64) -> Result<(), TokenRefusal> {
        for (name, reason) in [("nbf", "the token is not valid yet"), ("iat", "the token was issued in the future")] {
            if self.time(name)?.is_some_and(|start| start > now.saturating_add(MAX_SKEW)) {
                return Err(TokenRefusal::invalid(reason));
            }
        }
        Ok(())
    }
}

/// Returns the second from which a token that ends at `end` is refused.
fn check_end(end: i64, now: i64) -> Result<i64, TokenRefusal> {
    let end = end.saturating_add(MAX_SKEW);
    if now < end { Ok(end) } else { Err(TokenRefusal::Expired) }
}
