//! Upkeep of the webhooks: the certificate that they show, and the objects that lead the API server
//! to them.

use super::authority::{Authorities, SignedCertificate};
use super::place::CONVERSION;
use super::{CONVERT, ConversionOwner, DEFAULT, VALIDATE, WebhookPlace};
use crate::kinds::GROUP;
use crate::serve::store::{DEFINITIONS, resource};
use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use serde_json::{Value, json};
use stator_kube::{Api, ApiError, Resource};
use stator_runtime::tls::{
    CertificateSource, IssuedCertificate, Reload, ServerSettings, ServerTls, Version, server_config,
};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Time between two looks at certificates and objects.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Tries of a change that others keep being faster with.
const TRIES: usize = 8;
/// Keys of the Secret: authorities with their keys, and the certificates to trust.
const AUTHORITIES: &str = "authorities.json";
const BUNDLE: &str = "ca.crt";

/// Kinds whose documents have two versions.
const CONVERTED: [&str; 4] = [
    "dynamographdeployments",
    "dynamocomponentdeployments",
    "dynamographdeploymentrequests",
    "dynamographdeploymentscalingadapters",
];
/// Configurations of webhooks, and the path that those of each lead to.
const CONFIGURATIONS: [(Resource, &str); 2] = [
    (resource(REGISTRATION, "v1", "mutatingwebhookconfigurations"), DEFAULT),
    (resource(REGISTRATION, "v1", "validatingwebhookconfigurations"), VALIDATE),
];
const REGISTRATION: &str = "admissionregistration.k8s.io";
const SECRETS: Resource = resource("", "v1", "secrets");

/// Choices of the webhooks.
#[derive(Clone, Debug)]
pub(crate) struct WebhookSettings {
    pub(crate) place: WebhookPlace,
    /// Name of the Secret with the authorities, and of the configurations.
    pub(crate) name: String,
    /// Namespace of the Secret.
    pub(crate) namespace: String,
    /// Folder with a certificate of somebody else's making.
    pub(crate) certificates: Option<PathBuf>,
}

/// Source of the certificate.
enum WebhookCertificate {
    /// Files that somebody else renews.
    Files(PathBuf),
    /// The operator's own authorities.
    Own { issued: IssuedCertificate, signed: SignedCertificate },
}

/// Keeps certificate and objects as they should be.
pub(crate) struct Upkeep {
    api: Api,
    settings: WebhookSettings,
    certificate: WebhookCertificate,
    /// The certificates to trust; `None` where somebody else sets them.
    bundle: Option<String>,
}

impl Upkeep {
    /// A certificate, and the configuration of a server that shows it. Files have a task that keeps
    /// them fresh.
    ///
    /// # Errors
    ///
    /// Without rights to the Secret, and for files that hold no certificate.
    pub(crate) async fn start(
        api: Api,
        settings: WebhookSettings,
    ) -> anyhow::Result<(Self, ServerTls, Option<Reload>)> {
        if let Some(folder) = settings.certificates.clone() {
            let (tls, reload) = server_config(&ServerSettings {
                certificate: CertificateSource::Folder(folder.clone()),
                client_ca: None,
                reload: true,
                min_version: Version::Tls12,
                alpn: vec!["http/1.1".to_owned()],
            })?;
            let bundle = read_bundle(&folder).await;
            let certificate = WebhookCertificate::Files(folder);
            return Ok((Self { api, settings, certificate, bundle }, tls, reload));
        }
        let authorities = authorities(&api, &settings).await?;
        let names = [settings.place.host()];
        let signed = authorities.sign(&names, now(), None)?.context("there is an authority")?;
        let issued = IssuedCertificate::new(&signed.chain, &signed.key)?;
        let tls = issued.server_config()?;
        let bundle = Some(authorities.bundle());
        let certificate = WebhookCertificate::Own { issued, signed };
        Ok((Self { api, settings, certificate, bundle }, tls, None))
    }

    /// Leads the API server to the webhooks that listen on `port`, in definitions first: what is
    /// stored then is in the newer form when the other webhooks see it.
    ///
    /// # Errors
    ///
    /// Where another operator owns the kinds, and for objects that are out of reach or refused.
    pub(crate) async fn lead(&self, port: u16) -> anyhow::Result<()> {
        let WebhookSettings { place, name, .. } = &self.settings;
        let bundle = self.bundle.as_deref();
        for plural in CONVERTED {
            let path = format!("{}/{plural}.{GROUP}", DEFINITIONS.path(None));
            self.change(&path, |definition| {
                match place.owner(definition) {
                    ConversionOwner::Stranger(whose) => {
                        bail!("{plural}.{GROUP} belongs to the operator behind the webhook {whose}")
                    }
                    // It converts as this one does.
                    ConversionOwner::Sibling(_) => return Ok(()),
                    ConversionOwner::Own | ConversionOwner::Nobody => {}
                }
                let mut client = place.client(CONVERT, port, bundle);
                let known = &definition["spec"]["conversion"]["webhook"]["clientConfig"];
                keep_bundle(&mut client, known);
                definition["metadata"]["annotations"][CONVERSION] = place.mark().into();
                definition["spec"]["conversion"] = json!({
                    "strategy": "Webhook",
                    "webhook": { "clientConfig": client, "conversionReviewVersions": ["v1"] },
                });
                Ok(())
            })
            .await?;
        }
        for (resource, webhook) in CONFIGURATIONS {
            let path = format!("{}/{name}", resource.path(None));
            self.change(&path, |configuration| {
                let webhooks = configuration["webhooks"].as_array_mut().into_iter().flatten();
                for of in webhooks {
                    let mut client = place.client(webhook, port, bundle);
                    keep_bundle(&mut client, &of["clientConfig"]);
                    of["clientConfig"] = client;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Looks again and again until dropped. Faults are logged, and tried again: what the API server
    /// knows stays.
    ///
    /// # Errors
    ///
    /// Never by itself.
    pub(crate) async fn run(mut self, port: u16) {
        let mut fault = String::new();
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            match self.look(port).await {
                Ok(()) => fault.clear(),
                Err(error) => {
                    let said = format!("{error:#}");
                    if said != fault {
                        tracing::error!(error = said, "webhooks are not kept up");
                        fault = said;
                    }
                }
            }
        }
    }

    async fn look(&mut self, port: u16) -> anyhow::Result<()> {
        match &mut self.certificate {
            WebhookCertificate::Files(folder) => self.bundle = read_bundle(folder).await,
            WebhookCertificate::Own { issued, signed } => {
                let authorities = authorities(&self.api, &self.settings).await?;
                let names = [self.settings.place.host()];
                if let Some(new) = authorities.sign(&names, now(), Some(signed))? {
                    issued.replace(&new.chain, &new.key)?;
                    tracing::info!("webhooks show a new certificate");
                    *signed = new;
                }
                self.bundle = Some(authorities.bundle());
            }
        }
        self.lead(port).await
    }

    /// Changes the object at a path, unless it is as it should be.
    async fn change(
        &self,
        path: &str,
        change: impl Fn(&mut Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let answer = self.api.call(Method::GET, path, Vec::new()).await;
            let known: Value = serde_json::from_slice(&answer.with_context(|| path.to_owned())?)?;
            let mut wanted = known.clone();
            change(&mut wanted)?;
            if wanted == known {
                return Ok(());
            }
            let body = wanted.to_string().into_bytes();
            match self.api.call(Method::PUT, path, body).await {
                Ok(_) => {
                    tracing::info!(object = path, "leads to the webhooks");
                    return Ok(());
                }
                Err(ApiError::Conflict(_)) => {}
                Err(error) => return Err(error).with_context(|| path.to_owned()),
            }
        }
        bail!("{path}: others changed it {TRIES} times in a row")
    }
}

/// Keeps the certificates to trust where somebody else sets them.
fn keep_bundle(client: &mut Value, known: &Value) {
    if client["caBundle"].is_null() && !known["caBundle"].is_null() {
        client["caBundle"] = known["caBundle"].clone();
    }
}

/// The authority of files, where its certificate lies beside them.
async fn read_bundle(folder: &std::path::Path) -> Option<String> {
    tokio::fs::read_to_string(folder.join(BUNDLE)).await.ok()
}

/// Time since 1970.
fn now() -> Duration {
    // A clock before 1970 makes certificates that start there.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The authorities of the Secret, renewed where that is due. Replicas that do so at once agree on
/// what the first has written.
async fn authorities(api: &Api, settings: &WebhookSettings) -> anyhow::Result<Authorities> {
    let WebhookSettings { name, namespace, .. } = settings;
    let path = SECRETS.path_of(namespace, name);
    for _ in 0..TRIES {
        let found = match api.call(Method::GET, &path, Vec::new()).await {
            Ok(answer) => Some(serde_json::from_slice::<Value>(&answer)?),
            Err(ApiError::Absent(_)) => None,
            Err(error) => return Err(error).with_context(|| path.clone()),
        };
        let known =
            found.as_ref().map(|secret| read_authorities(secret).with_context(|| path.clone()));
        let known = known.transpose()?.unwrap_or_default();
        let Some(renewed) = known.renewed(now())? else { return Ok(known) };
        let data = json!({
            AUTHORITIES: BASE64_STANDARD.encode(serde_json::to_string(&renewed)?),
            BUNDLE: BASE64_STANDARD.encode(renewed.bundle()),
        });
        let (method, path, secret) = match found {
            Some(mut secret) => {
                secret["data"] = data;
                (Method::PUT, path.clone(), secret)
            }
            None => {
                let metadata = json!({ "name": name, "namespace": namespace });
                let secret = json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data,
                });
                (Method::POST, SECRETS.path(Some(namespace)), secret)
            }
        };
        match api.call(method, &path, secret.to_string().into()).await {
            Ok(_) => tracing::info!(secret = name, "webhooks have a new authority"),
            Err(ApiError::Conflict(_)) => {}
            Err(error) => return Err(error).with_context(|| path.clone()),
        }
    }
    bail!("{path}: others changed it {TRIES} times in a row")
}

/// The authorities of a Secret. One without any was made by somebody else, to be filled.
fn read_authorities(secret: &Value) -> anyhow::Result<Authorities> {
    let Some(text) = secret["data"][AUTHORITIES].as_str() else {
        return Ok(Authorities::default());
    };
    let bytes = BASE64_STANDARD.decode(text).context(AUTHORITIES)?;
    serde_json::from_slice(&bytes).context(AUTHORITIES)
}
