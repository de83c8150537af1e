//! Finds and reads the metadata of an issuer (RFC 8414, OpenID Connect Discovery 1.0).

use futures_util::future::LocalBoxFuture;
use serde::Deserialize;
use url::Url;

use super::requests::{RequestError, get_json};
use countersign_config::{Authorities, is_loopback};
use countersign_domain::text::truncate;

/// The maximum number of characters of another party's text that are quoted.
const MAX_QUOTED_CHARS: usize = 200;

/// The members of an issuer's metadata that the gateway uses.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Metadata {
    issuer: String,
    pub jwks_uri: Option<String>,
    pub introspection_endpoint: Option<String>,
    pub introspection_endpoint_auth_methods_supported: Option<Vec<String>>,
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: Option<String>,
    pub token_endpoint_auth_methods_supported: Option<Vec<String>>,
    pub userinfo_endpoint: Option<String>,
    pub end_session_endpoint: Option<String>,
    pub device_authorization_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    authorization_response_iss_parameter_supported: Option<bool>,
}

/// The purpose for which metadata are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetadataPurpose {
    AccessTokens,
    SignIns,
}

impl Metadata {
    /// Reads the metadata of an issuer from the first of its well-known URLs that has it. Boxed, so that its code is compiled
    /// in this crate only.
    pub(super) fn read<'a>(
        issuer: &'a str,
        purpose: MetadataPurpose,
        trusted: Option<&'a Authorities>,
    ) -> LocalBoxFuture<'a, Result<Self, RequestError>> {
        Box::pin(async move {
            let urls = match purpose {
                MetadataPurpose::AccessTokens => well_known_urls(issuer),
                MetadataPurpose::SignIns => openid_provider_urls(issuer),
            };
            let mut failure = RequestError::Unusable("it has no well-known URL".to_owned());
            for url in &urls {
                let is_unavailable = matches!(failure, RequestError::Unavailable(_));
                let metadata = get_json(url, trusted).await.and_then(|document| {
                    Self::deserialize(document).map_err(|error| RequestError::Unusable(quote(&error.to_string())))
                });
                // At a URL without metadata, issuers answer with any status, with a page, or with other JSON.
                let metadata = match metadata {
                    Ok(metadata) => metadata,
                    Err(RequestError::Unreachable(error)) => {
                        return Err(RequestError::Unreachable(format!("{url}: {error}")));
                    }
                    Err(RequestError::Unavailable(error)) => {
                        failure = RequestError::Unavailable(format!("{url}: {error}"));
                        // People would lose the groups of UserInfo if metadata without its endpoint took the place of these.
                        if purpose == MetadataPurpose::SignIns && urls.first() == Some(url) {
                            return Err(failure);
                        }
                        continue;
                    }
                    Err(_) if is_unavailable => continue,
                    Err(error) => {
                        failure = RequestError::Unusable(format!("{url}: {error}"));
                        continue;
                    }
                };
                let checked = metadata.check(issuer);
                return checked.map(|()| metadata).map_err(|error| RequestError::Unusable(format!("{url}: {error}")));
            }
            Err(failure)
        })
    }

    /// Checks that the metadata are those of this issuer, and that the gateway may use their endpoints.
    fn check(&self, issuer: &str) -> Result<(), String> {
        // RFC 8414, section 3.3. Otherwise an issuer could speak for another one.
        if self.issuer != issuer {
            return Err(format!("the issuer in the document is {}, not {issuer:?}", quote(&self.issuer)));
        }
        let endpoints = [
            &self.jwks_uri,
            &self.introspection_endpoint,
            &self.authorization_endpoint,
            &self.token_endpoint,
            &self.userinfo_endpoint,
            &self.end_session_endpoint,
            &self.device_authorization_endpoint,
            &self.revocation_endpoint,
        ];
        endpoints.into_iter().flatten().try_for_each(|endpoint| check_endpoint(issuer, endpoint))
    }

    /// Returns `true` if every answer to an authorization request names the issuer (RFC 9207).
    pub(super) fn names_issuer(&self) -> bool {
        self.authorization_response_iss_parameter_supported == Some(true)
    }
}

/// Returns `true` if an endpoint with these authentication methods accepts a secret in the form only.
pub(super) fn needs_secret_in_form(methods: Option<&[String]>) -> bool {
    let supports = |name: &str| methods.is_some_and(|all| all.iter().any(|method| method == name));
    supports("client_secret_post") && !supports("client_secret_basic")
}

/// Returns the beginning of another party's text in quotes and escaped, for logs and error messages.
pub fn quote(text: &str) -> String {
    format!("{:?}", truncate(text, MAX_QUOTED_CHARS))
}

/// Checks that an endpoint uses HTTPS, or HTTP on loopback if the operator configured the issuer there.
pub(super) fn check_endpoint(issuer: &str, endpoint: &str) -> Result<(), String> {
    let url = Url::parse(endpoint).map_err(|error| format!("{}: {error}", quote(endpoint)))?;
    let is_local = url.scheme() == "http" && is_loopback(&url) && issuer.starts_with("http://");
    if url.scheme() == "https" || is_local { Ok(()) } else { Err(format!("{} does not use https", quote(endpoint))) }
}

/// Returns the URLs of an issuer's metadata in the order in which MCP clients try them
/// (2026-07-28/basic/authorization/authorization-server-discovery).
pub fn well_known_urls(issuer: &str) -> Vec<String> {
    let Ok(url) = Url::parse(issuer) else { return Vec::new() };
    let origin = url.origin().ascii_serialization();
    let path = url.path().trim_end_matches('/');
    let mut urls = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{origin}{path}/.well-known/openid-configuration"));
    }
    urls
}

/// Returns the URLs of an OpenID provider's metadata. Its configuration comes first, because OAuth metadata may lack endpoints
/// of sign-ins, such as that of UserInfo (OpenID Connect Discovery 1.0, section 4).
fn openid_provider_urls(issuer: &str) -> Vec<String> {
    well_known_urls(issuer).into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn well_known_urls_have_the_order_of_the_specification() {
        assert_eq!(
            well_known_urls("https://id.example/tenant/"),
            [
                "https://id.example/.well-known/oauth-authorization-server/tenant",
                "https://id.example/.well-known/openid-configuration/tenant",
                "https://id.example/tenant/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            well_known_urls("http://127.0.0.1:9"),
            [
                "http://127.0.0.1:9/.well-known/oauth-authorization-server",
                "http://127.0.0.1:9/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn openid_configuration_comes_first_for_sign_ins() {
        for (issuer, first) in [
            ("https://id.example/tenant", "https://id.example/tenant/.well-known/openid-configuration"),
            ("https://id.example", "https://id.example/.well-known/openid-configuration"),
        ] {
            let urls = openid_provider_urls(issuer);
            assert_eq!(urls.first().map(String::as_str), Some(first));
            assert!(urls.last().is_some_and(|url| url.contains("/oauth-authorization-server")), "{urls:?}");
        }
    }

    #[test]
    fn foreign_issuer_is_cut_and_escaped_in_the_error() {
        let document = json!({ "issuer": format!("a\n{}", "b".repeat(100_000)) });
        let error = Metadata::deserialize(document).unwrap().check("https://id.example").unwrap_err();
        assert!(error.contains(r"a\nbb") && error.len() < 300, "{error:.400}");
    }

    #[test]
    fn endpoint_must_use_https_or_be_as_local_as_the_issuer() {
        for (issuer, endpoint, is_accepted) in [
            ("https://id.example", "https://keys.example/jwks", true),
            ("https://id.example", "http://id.example/jwks", false),
            ("https://id.example", "http://127.0.0.1/jwks", false),
            ("https://id.example", "file:///etc/passwd", false),
            ("https://id.example", "/jwks", false),
            ("http://127.0.0.1:9", "http://127.0.0.1:8/jwks", true),
            ("http://127.0.0.1:9", "http://[::1]/jwks", true),
            ("http://127.0.0.1:9", "http://10.0.0.1/jwks", false),
            ("http://127.0.0.1:9", "http://id.example/jwks", false),
        ] {
            assert_eq!(check_endpoint(issuer, endpoint).is_ok(), is_accepted, "{issuer} {endpoint}");
        }
    }
}
