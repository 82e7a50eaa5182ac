//! The operator's own authority: the certificates that the API server trusts webhooks by, and how
//! one follows another without a moment in which a certificate is not trusted.
//!
//! All replicas share the authorities of one Secret, and each signs a certificate of its own. A new
//! authority is trusted at once and signs only later, so that every replica and the API server know
//! it by then; an old one is trusted until it ends.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time for which an authority is trusted.
const AUTHORITY_LIFE: Duration = Duration::from_secs(360 * 24 * 3600);
/// Age of an authority at which its successor is made.
const AUTHORITY_RENEWAL: Duration = Duration::from_secs(240 * 24 * 3600);
/// Age from which an authority signs, where there is an older one.
const AUTHORITY_SETTLING: Duration = DAY;
/// Time for which a certificate of the server is valid.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Age of a certificate at which its successor is made.
const CERTIFICATE_RENEWAL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Clocks of clients may be behind by this much.
const CLOCK_SKEW: Duration = DAY;

/// Authorities, the oldest first. Holds keys, hence no `Debug`.
#[derive(Clone, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Authorities(Vec<Authority>);

/// One authority, PEM.
#[derive(Clone, Deserialize, PartialEq, Serialize)]
struct Authority {
    /// Unix time at which it was made, seconds.
    made_s: u64,
    certificate: String,
    key: String,
}

/// Certificate of a server with its key, PEM. Holds a key, hence no `Debug`.
pub(super) struct SignedCertificate {
    pub(super) chain: String,
    pub(super) key: String,
    /// Unix times at which certificate and authority were made.
    made: Duration,
    authority_s: u64,
}

impl Authorities {
    /// The authorities as they should be at the Unix time `now`; `None` where they are.
    pub(super) fn renewed(&self, now: Duration) -> Result<Option<Self>, rcgen::Error> {
        let mut all = self.0.clone();
        all.retain(|authority| authority.age(now) < AUTHORITY_LIFE);
        if all.last().is_none_or(|newest| newest.age(now) >= AUTHORITY_RENEWAL) {
            all.push(Authority::new(now)?);
        }
        Ok((all != self.0).then_some(Self(all)))
    }

    /// The certificates to trust.
    pub(super) fn bundle(&self) -> String {
        self.0.iter().map(|authority| authority.certificate.as_str()).collect()
    }

    /// Signs a certificate for these names; `None` where `known` is still good.
    pub(super) fn sign(
        &self,
        names: &[String],
        now: Duration,
        known: Option<&SignedCertificate>,
    ) -> Result<Option<SignedCertificate>, rcgen::Error> {
        let settled = self.0.iter().rev().find(|of| of.age(now) >= AUTHORITY_SETTLING);
        let Some(authority) = settled.or(self.0.first()) else { return Ok(None) };
        let is_good = known.is_some_and(|known| {
            known.authority_s == authority.made_s
                && now.saturating_sub(known.made) < CERTIFICATE_RENEWAL
        });
        if is_good { Ok(None) } else { authority.sign(names, now).map(Some) }
    }
}

impl Authority {
    fn new(now: Duration) -> Result<Self, rcgen::Error> {
        let (made_s, key) = (now.as_secs(), KeyPair::generate()?);
        let certificate = Self::params(made_s)?.self_signed(&key)?.pem();
        Ok(Self { made_s, certificate, key: key.serialize_pem() })
    }

    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_secs(self.made_s))
    }

    /// The content of the certificate. The same each time: signing needs it again.
    fn params(made_s: u64) -> Result<CertificateParams, rcgen::Error> {
        let made = Duration::from_secs(made_s);
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name = DistinguishedName::new();
        let name = format!("stator webhooks {made_s}");
        params.distinguished_name.push(DnType::CommonName, name);
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + made.saturating_sub(CLOCK_SKEW);
        params.not_after = epoch + made + AUTHORITY_LIFE;
        Ok(params)
    }

    fn sign(&self, names: &[String], now: Duration) -> Result<SignedCertificate, rcgen::Error> {
        let issuer = Issuer::new(Self::params(self.made_s)?, KeyPair::from_pem(&self.key)?);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "stator operator");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let end = Duration::from_secs(self.made_s) + AUTHORITY_LIFE;
        params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
        params.not_after = epoch + end.min(now + CERTIFICATE_LIFE);
        let chain = params.signed_by(&key, &issuer)?.pem();
        let (made, authority_s) = (now, self.made_s);
        Ok(SignedCertificate { chain, key: key.serialize_pem(), made, authority_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const START: Duration = Duration::from_secs(1_800_000_000);

    /// Certificates of PEM text, a text each.
    fn certificates(pem: &str) -> BTreeSet<&str> {
        let texts = pem.split_inclusive("-----END CERTIFICATE-----").map(str::trim);
        texts.filter(|text| !text.is_empty()).collect()
    }

    /// Three years of looks, ten hours apart: at every moment the certificate that is shown comes from
    /// an authority that was trusted a day ago, and both are valid.
    #[test]
    fn authorities_follow_one_another_without_a_gap() {
        let names = ["stator-operator.n.svc".to_owned()];
        let (mut all, mut shown) = (Authorities::default(), None::<SignedCertificate>);
        let (mut trusted, mut made) = (Vec::<BTreeSet<u64>>::new(), BTreeSet::new());
        for hours in (0..3 * 365 * 24).step_by(10) {
            let now = START + Duration::from_secs(hours * 3600);
            if let Some(renewed) = all.renewed(now).expect("keys are made") {
                all = renewed;
            }
            let signed = all.sign(&names, now, shown.as_ref()).expect("keys are made");
            shown = signed.or(shown);
            let shown = shown.as_ref().expect("there is a certificate");
            assert!(now - shown.made < CERTIFICATE_LIFE);
            let authority = all.0.iter().find(|of| of.made_s == shown.authority_s);
            assert!(authority.expect("it is trusted").age(now) < AUTHORITY_LIFE);
            let now_trusted: BTreeSet<_> = all.0.iter().map(|of| of.made_s).collect();
            assert!(now_trusted.len() <= 2, "{now_trusted:?}");
            assert_eq!(certificates(&all.bundle()).len(), now_trusted.len());
            trusted.push(now_trusted);
            let yesterday = trusted.iter().rev().nth(2);
            assert!(yesterday.is_none_or(|known| known.contains(&shown.authority_s)));
            made.insert(shown.authority_s);
        }
        assert_eq!(made.len(), 5);
    }

    #[test]
    fn authorities_survive_their_secret() {
        let all = Authorities::default().renewed(START).expect("a key").expect("a new one");
        let text = serde_json::to_string(&all).expect("they are JSON");
        let read: Authorities = serde_json::from_str(&text).expect("they are the same");
        assert!(read == all && read.renewed(START + DAY).expect("a key").is_none());
    }
}
