//! Finds files and folders that the configuration names and that the gateway could not use at its start. The start reads them
//! with the same functions.

use std::{fmt, fs, path::Path};

use rustls::{
    Error,
    crypto::ring::default_provider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    sign::CertifiedKey,
};

use super::{
    ConfigError, LoadedConfig, TlsConfig,
    error::{Origin, Problem, invalid, quoted_key},
};
use countersign_net::tls::read_authorities;
use countersign_runtime::sealing::read_key_file;

/// The reasons why the files of `tls` cannot be used. At least one is present.
#[derive(Debug)]
pub struct TlsFilesError {
    pub certificate: Option<String>,
    pub key: Option<String>,
}

impl fmt::Display for TlsFilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons: Vec<&str> = [&self.certificate, &self.key].into_iter().flatten().map(String::as_str).collect();
        f.write_str(&reasons.join("; "))
    }
}

impl TlsConfig {
    /// Reads the certificate, followed by its intermediates, and its key.
    ///
    /// # Errors
    /// Returns for each unusable file its path and the reason.
    pub fn read_certified_key(&self) -> Result<CertifiedKey, TlsFilesError> {
        let (chain, key) = match (read_certificates(&self.cert), read_private_key(&self.key)) {
            (Ok(chain), Ok(key)) => (chain, key),
            (certificates, key) => return Err(TlsFilesError { certificate: certificates.err(), key: key.err() }),
        };
        CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| self.describe(&error))
    }

    fn describe(&self, error: &Error) -> TlsFilesError {
        let (cert, key) = (self.cert.display(), self.key.display());
        let key_error = |reason: String| TlsFilesError { certificate: None, key: Some(reason) };
        match error {
            Error::InvalidCertificate(reason) => {
                let reason = format!("the first certificate in {cert} cannot be used: {reason}");
                TlsFilesError { certificate: Some(reason), key: None }
            }
            Error::InconsistentKeys(_) => key_error(format!("{key} is not the key of the first certificate in {cert}")),
            error => key_error(format!("{key} cannot be used: {error}")),
        }
    }
}

/// Reads the certificates of a chain, of which there is at least one.
fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_file(file)?;
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| format!("{} cannot be used: {error}", file.display()))?;
    if chain.is_empty() {
        return Err(format!("{} contains no certificate", file.display()));
    }
    Ok(chain)
}

fn read_private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read_file(file)?).map_err(|error| match error {
        pem::Error::NoItemsFound => format!("{} contains no private key", file.display()),
        error => format!("{} cannot be used: {error}", file.display()),
    })
}

fn read_file(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))
}

impl LoadedConfig {
    /// Reads the files and opens the folders that the configuration names. Loading does not do so, because they concern only the
    /// start and may be unusable for a moment, such as while a certificate is renewed.
    ///
    /// # Errors
    /// Returns a problem for each one that cannot be used.
    pub fn check_named_files(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        let mut report = |key: &str, message: String, remedy: &str| {
            problems.push(Problem::new(self.origin(key), Some(key), invalid(message, remedy)));
        };
        let config = &self.config;
        if let Some(Err(error)) = config.tls.as_ref().map(TlsConfig::read_certified_key) {
            if let Some(reason) = error.certificate {
                report("tls.cert", reason, "Name a PEM file with the certificate, followed by its intermediates.");
            }
            if let Some(reason) = error.key {
                report("tls.key", reason, "Name a PEM file with the private key of the certificate.");
            }
        }
        if let Some(file) = &config.key_file
            && let Err(error) = read_key_file(file)
        {
            let remedy = "Name a file of mode 0600 with 32 bytes as base64.";
            report("secrets.key_file", format!("{} cannot be used: {error}", file.display()), remedy);
        }
        if let Some((_, Some(file))) = config.store_server()
            && let Err(error) = read_authorities(file)
        {
            let remedy = "Name a PEM file with the certificates of the authorities.";
            report("store.ca", format!("{} cannot be used: {error}", file.display()), remedy);
        }
        let docs = &config.modules.docs;
        for project in docs.projects.iter().filter(|_| docs.enabled) {
            if let Err(error) = project.canonical_root() {
                let key = format!("modules.docs.projects.{}.root", quoted_key(&project.name));
                let message = format!("{} is not a readable folder: {error}", project.root.display());
                report(&key, message, "Name an existing folder.");
            }
        }
        ConfigError::check(problems)
    }

    /// Returns the place that set the key, or the setting that contains it.
    fn origin(&self, key: &str) -> Origin {
        let contains =
            |setting: &str| key.strip_prefix(setting).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let found = self.settings.iter().find(|setting| contains(setting.key));
        found.map_or(Origin::Default, |setting| setting.origin.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{Environment, Flags, load, testing::write_usable_files};

    fn check_yaml(folder: &Path, yaml: &str) -> Result<(), ConfigError> {
        let file = folder.join("c.yaml");
        fs::write(&file, yaml).unwrap();
        let home = folder.to_str().unwrap();
        let env = Environment::new(folder, &[("HOME", home)]);
        load(&Flags { config: Some(file), ..Flags::default() }, &env)?.check_named_files()
    }

    fn write_token_key(folder: &Path, name: &str, text: &str, mode: u32) {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn usable_files_and_those_of_unused_parts_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        write_usable_files(dir.path());
        for yaml in [
            "tls: { cert: cert.pem, key: tls.key }",
            "secrets: { key_file: token.key }",
            "store: { url: 'postgres://h/c', ca: cert.pem }",
            "modules: { docs: { enabled: true, projects: { a: { root: . } } } }",
            "store: { ca: missing }",
            "modules: { docs: { enabled: false, projects: { a: { root: missing } } } }",
        ] {
            check_yaml(dir.path(), yaml).unwrap_or_else(|error| panic!("{yaml}: {error}"));
        }
    }

    #[test]
    fn unusable_file_is_reported_at_its_key() {
        const BROKEN: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        for folder in [dir.path(), other.as_path()] {
            write_usable_files(folder);
        }
        for (name, text) in [("junk", "junk"), ("empty", ""), ("broken.pem", BROKEN)] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let token_key = fs::read_to_string(dir.path().join("token.key")).unwrap();
        write_token_key(dir.path(), "short.key", "AAAA", 0o600);
        write_token_key(dir.path(), "public.key", &token_key, 0o644);
        for (yaml, key, reason) in [
            ("tls: { cert: cert.pem, key: other/tls.key }", "tls.key", "is not the key of the first certificate"),
            ("tls: { cert: cert.pem, key: junk }", "tls.key", "contains no private key"),
            ("tls: { cert: cert.pem, key: missing }", "tls.key", "cannot be read: No such file"),
            ("tls: { cert: junk, key: tls.key }", "tls.cert", "contains no certificate"),
            ("tls: { cert: empty, key: tls.key }", "tls.cert", "contains no certificate"),
            ("tls: { cert: broken.pem, key: tls.key }", "tls.cert", "cannot be used"),
            ("secrets: { key_file: missing }", "secrets.key_file", "No such file"),
            ("secrets: { key_file: short.key }", "secrets.key_file", "holds no key of 32 bytes"),
            ("secrets: { key_file: public.key }", "secrets.key_file", "chmod 600"),
            ("store: { url: 'postgres://h/c', ca: missing }", "store.ca", "No such file"),
            ("store: { url: 'postgres://h/c', ca: junk }", "store.ca", "contains no certificate"),
            (
                "modules: { docs: { enabled: true, projects: { a: { root: missing } } } }",
                "modules.docs.projects.a.root",
                "No such file",
            ),
            (
                "modules: { docs: { enabled: true, projects: { a: { root: junk } } } }",
                "modules.docs.projects.a.root",
                "Not a directory",
            ),
        ] {
            let problems = check_yaml(dir.path(), yaml).unwrap_err().problems;
            let [problem] = &problems[..] else { panic!("{yaml}: {problems:?}") };
            assert_eq!(problem.key.as_deref(), Some(key), "{yaml}");
            let text = problem.to_string();
            assert!(text.contains("c.yaml:1:") && text.contains(reason), "{yaml}: {text}");
        }
    }

    #[test]
    fn both_unusable_tls_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let tls = TlsConfig { cert: dir.path().join("c.pem"), key: dir.path().join("k.pem") };
        let error = tls.read_certified_key().unwrap_err();
        assert!(error.certificate.is_some() && error.key.is_some());
        assert!(error.to_string().contains("c.pem") && error.to_string().contains("k.pem"), "{error}");
    }
}
