//! Estimates of the tokens of images and videos in a prompt, where nobody has its tokenizer.
//!
//! Source: the `estimate` backend of `token-producer` of the llm-d router.

use crate::params::{Bound, Params};

/// Estimates of the tokens of media in a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MediaEstimate {
    /// An image.
    pub image: ImageEstimate,
    /// A video.
    pub video: VideoEstimate,
}

/// Estimate of an image's tokens; 1 at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ImageEstimate {
    /// One token for each `factor` pixels.
    Dynamic {
        /// Pixels of a token.
        factor: f64,
        /// Pixels of an image of unknown size.
        default_pixels: u64,
    },
    /// Always as many.
    Static {
        /// The tokens.
        tokens: u64,
    },
}

impl Default for ImageEstimate {
    /// A token for 1024 pixels, of 640 by 360 where nothing is known.
    fn default() -> Self {
        Self::Dynamic { factor: 1024.0, default_pixels: 640 * 360 }
    }
}

impl ImageEstimate {
    /// The tokens of an image with `pixels`, or with the default number.
    pub fn tokens(self, pixels: Option<u64>) -> u64 {
        match self {
            Self::Dynamic { factor, default_pixels } => {
                ((pixels.unwrap_or(default_pixels) as f64 / factor) as u64).max(1)
            }
            Self::Static { tokens } => tokens,
        }
    }
}

/// Estimate of a video's tokens: frames times the tokens of a frame; 1 at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoEstimate {
    /// A frame.
    pub frame: ImageEstimate,
    /// Frames that count.
    pub frames: Frames,
    /// Smallest and largest number of frames, before they are grouped.
    pub bounds: (u64, u64),
    /// Seconds of a video of unknown length.
    pub default_seconds: f64,
    /// Most tokens of a video.
    pub max_tokens: u64,
}

/// Selection of the frames of a video that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frames {
    /// A number of frames of each second; tokens stand for groups of them.
    Sampled {
        /// Frames of a second.
        per_second: f64,
        /// Frames of a group.
        group: u64,
    },
    /// Every `stride`th frame of the video's own.
    Strided {
        /// The video's frames of a second, if unknown.
        default_fps: f64,
        /// Distance between two chosen frames, in frames.
        stride: u64,
    },
}

/// Facts that a client gives about the videos of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VideoFacts {
    /// Length of the videos, in seconds.
    pub seconds: Option<f64>,
    /// Their frames of a second.
    pub fps: Option<f64>,
    /// Width times height of a frame.
    pub pixels: Option<u64>,
}

impl Default for VideoEstimate {
    /// A frame of each of 10 seconds.
    fn default() -> Self {
        Self {
            frame: ImageEstimate::default(),
            frames: Frames::Sampled { per_second: 1.0, group: 1 },
            bounds: (0, u64::MAX),
            default_seconds: 10.0,
            max_tokens: u64::MAX,
        }
    }
}

impl VideoEstimate {
    /// The tokens of a video with these facts.
    pub fn tokens(&self, facts: VideoFacts) -> u64 {
        let seconds = facts.seconds.unwrap_or(self.default_seconds);
        let (frames, group) = match self.frames {
            Frames::Sampled { per_second, group } => (seconds * per_second, group),
            Frames::Strided { default_fps, stride } => {
                (seconds * facts.fps.unwrap_or(default_fps) / stride as f64, 1)
            }
        };
        let (fewest, most) = self.bounds;
        let groups = (frames as u64).max(fewest).min(most).div_ceil(group);
        groups.saturating_mul(self.frame.tokens(facts.pixels)).min(self.max_tokens).max(1)
    }
}

/// Reads `estimate`.
pub(super) fn estimate(params: &mut Params<'_>) -> MediaEstimate {
    MediaEstimate { image: params.within("image", image), video: params.within("video", video) }
}

fn image(params: &mut Params<'_>) -> ImageEstimate {
    let default_pixels = resolution(params);
    tokens_of(params, default_pixels, "staticToken")
}

fn video(params: &mut Params<'_>) -> VideoEstimate {
    let default_pixels = resolution(params);
    let frame = params
        .within("tokensPerFrame", |params| tokens_of(params, default_pixels, "numTokensPerFrame"));
    let (frames, bounds) = params.within("frames", frames);
    let default_seconds = params.number("defaultDuration", 10.0, Bound::Above(0.0));
    VideoEstimate {
        frame,
        frames,
        bounds,
        default_seconds,
        max_tokens: cap(params, "maxVideoTokens"),
    }
}

fn frames(params: &mut Params<'_>) -> (Frames, (u64, u64)) {
    let strides = params.choice("mode", &[("sampled", false), ("strided", true)]);
    let bounds = (params.whole("minFrames", 0, 0..=1 << 20), cap(params, "maxFrames"));
    let sampled = params.within("sampled", |params| Frames::Sampled {
        per_second: params.number("sampleFPS", 1.0, Bound::Above(0.0)),
        group: params.whole("temporalPatchSize", 1, 0..=1 << 20).max(1),
    });
    let strided = params.within("strided", |params| Frames::Strided {
        default_fps: params.number("defaultSourceFPS", 24.0, Bound::Above(0.0)),
        stride: params.whole("frameStride", 1, 1..=1 << 20),
    });
    (if strides { strided } else { sampled }, bounds)
}

/// Pixels of what tells of none.
fn resolution(params: &mut Params<'_>) -> u64 {
    params.within("defaultResolution", |params| {
        params.whole("width", 640, 1..=1 << 20) * params.whole("height", 360, 1..=1 << 20)
    })
}

fn tokens_of(params: &mut Params<'_>, default_pixels: u64, fixed: &'static str) -> ImageEstimate {
    let is_static = params.choice("mode", &[("dynamic", false), ("static", true)]);
    let factor =
        params.within("dynamic", |params| params.number("factor", 1024.0, Bound::AtLeast(1.0)));
    let tokens = params.within("static", |params| params.whole(fixed, 256, 1..=1 << 20));
    match is_static {
        true => ImageEstimate::Static { tokens },
        false => ImageEstimate::Dynamic { factor, default_pixels },
    }
}

/// A limit; 0 is no limit.
fn cap(params: &mut Params<'_>, name: &'static str) -> u64 {
    match params.whole(name, 0, 0..=1 << 30) {
        0 => u64::MAX,
        limit => limit,
    }
}
