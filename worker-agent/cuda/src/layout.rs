//! Places of bytes: how an engine or an arena lays out the KV of its pages.

/// Sizes of a page, which all layouts of one model have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShape {
    /// Layers. An engine that keeps keys and values apart has twice as many here.
    pub layers: u32,
    /// Heads of a layer.
    pub heads: u32,
    /// Tokens of a page.
    pub tokens: u32,
    /// Bytes that one head has of one token in one layer.
    pub content_bytes: u32,
}

impl PageShape {
    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        let Self { layers, heads, tokens, content_bytes } = *self;
        [layers, heads, tokens, content_bytes].iter().map(|&size| size as usize).product()
    }
}

/// Order of the dimensions in memory, the outermost first: layer, block, head, token, content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOrder {
    /// Layers first: a page is one piece per layer.
    Lbhnc,
    /// Layers first and tokens before heads.
    Lbnhc,
    /// Blocks first: a page is one piece.
    Blhnc,
    /// Blocks first and tokens before heads.
    Blnhc,
}

/// Bytes from one layer, page, head and token to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStrides {
    /// From layer to layer.
    pub layer: usize,
    /// From page to page.
    pub page: usize,
    /// From head to head.
    pub head: usize,
    /// From token to token.
    pub token: usize,
}

/// Places of the bytes of all pages in one memory. A value of this type overflows nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    shape: PageShape,
    pages: u32,
    first: usize,
    strides: PageStrides,
}

/// Reason why a layout cannot be, or why two do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A dimension has no size, or the sizes exceed what an address can say.
    #[error("a layout of {pages} pages of {shape:?} has no bytes or too many")]
    Size {
        /// Sizes of a page.
        shape: PageShape,
        /// Pages.
        pages: u32,
    },
    /// The memory ends before the layout does.
    #[error("a layout of {needed} bytes in a memory of {bytes}")]
    Beyond {
        /// Bytes that the layout reaches.
        needed: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// Two layouts are of pages with other sizes.
    #[error("pages of {from:?} are copied to pages of {to:?}")]
    Unlike {
        /// Sizes of the source's pages.
        from: PageShape,
        /// Sizes of the target's pages.
        to: PageShape,
    },
    /// There is no such page.
    #[error("page {page} of {pages}")]
    NoPage {
        /// The page.
        page: u32,
        /// Pages of the layout.
        pages: u32,
    },
}

impl KvLayout {
    /// A layout whose first page begins at byte `first`.
    ///
    /// # Errors
    ///
    /// A size is 0, or the last byte has no address.
    pub fn new(
        shape: PageShape,
        pages: u32,
        first: usize,
        strides: PageStrides,
    ) -> Result<Self, LayoutError> {
        let layout = Self { shape, pages, first, strides };
        let PageShape { layers, heads, tokens, content_bytes } = shape;
        let error = LayoutError::Size { shape, pages };
        if [layers, heads, tokens, content_bytes, pages].contains(&0) {
            return Err(error);
        }
        let end = layout.checked_end().filter(|&end| isize::try_from(end).is_ok());
        end.map(|_| layout).ok_or(error)
    }

    /// A layout without gaps, from byte 0.
    ///
    /// # Errors
    ///
    /// The conditions of [`KvLayout::new`].
    pub fn packed(order: PageOrder, shape: PageShape, pages: u32) -> Result<Self, LayoutError> {
        let error = LayoutError::Size { shape, pages };
        let strides = packed_strides(order, shape, pages).ok_or(error)?;
        Self::new(shape, pages, 0, strides)
    }

    /// This layout with pages `stride` bytes apart, as the slots of an arena are.
    ///
    /// # Errors
    ///
    /// The conditions of [`KvLayout::new`].
    pub fn with_page_stride(self, stride: usize) -> Result<Self, LayoutError> {
        let strides = PageStrides { page: stride, ..self.strides };
        Self::new(self.shape, self.pages, self.first, strides)
    }

    /// Sizes of a page.
    pub fn shape(&self) -> PageShape {
        self.shape
    }

    /// Pages in all.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Bytes between like places of neighbours.
    pub fn strides(&self) -> PageStrides {
        self.strides
    }

    /// The first byte of page 0.
    pub fn first(&self) -> usize {
        self.first
    }

    /// The end of the last byte.
    pub fn end(&self) -> usize {
        self.checked_end().expect("a layout that was made has an end")
    }

    /// The first byte of a page.
    ///
    /// # Errors
    ///
    /// There is no such page.
    pub fn page(&self, page: u32) -> Result<usize, LayoutError> {
        let pages = self.pages;
        let is_there = page < pages;
        let start = self.first + page as usize * self.strides.page * usize::from(is_there);
        is_there.then_some(start).ok_or(LayoutError::NoPage { page, pages })
    }

    fn checked_end(&self) -> Option<usize> {
        let last = |size: u32, stride: usize| (size as usize - 1).checked_mul(stride);
        let PageShape { layers, heads, tokens, content_bytes } = self.shape;
        let PageStrides { layer, page, head, token } = self.strides;
        self.first
            .checked_add(last(layers, layer)?)?
            .checked_add(last(self.pages, page)?)?
            .checked_add(last(heads, head)?)?
            .checked_add(last(tokens, token)?)?
            .checked_add(content_bytes as usize)
    }
}

fn packed_strides(order: PageOrder, shape: PageShape, pages: u32) -> Option<PageStrides> {
    let [layers, heads, tokens] = [shape.layers, shape.heads, shape.tokens].map(|n| n as usize);
    let content = shape.content_bytes as usize;
    let is_token_first = matches!(order, PageOrder::Lbnhc | PageOrder::Blnhc);
    let (head, token) = match is_token_first {
        true => (content, content.checked_mul(heads)?),
        false => (content.checked_mul(tokens)?, content),
    };
    let piece = content.checked_mul(tokens)?.checked_mul(heads)?;
    let is_layer_first = matches!(order, PageOrder::Lbhnc | PageOrder::Lbnhc);
    let (layer, page) = match is_layer_first {
        true => (piece.checked_mul(pages as usize)?, piece),
        false => (piece, piece.checked_mul(layers)?),
    };
    Some(PageStrides { layer, page, head, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PageShape = PageShape { layers: 3, heads: 2, tokens: 4, content_bytes: 8 };

    #[test]
    fn packed_layouts_have_no_gaps() {
        for order in [PageOrder::Lbhnc, PageOrder::Lbnhc, PageOrder::Blhnc, PageOrder::Blnhc] {
            let layout = KvLayout::packed(order, SHAPE, 5).unwrap();
            assert_eq!(layout.end(), 5 * SHAPE.page_bytes(), "{order:?}");
        }
        let layout = KvLayout::packed(PageOrder::Lbhnc, SHAPE, 5).unwrap();
        assert_eq!(layout.strides(), PageStrides { layer: 320, page: 64, head: 32, token: 8 });
        assert_eq!(layout.page(2), Ok(128));
        assert_eq!(layout.page(5), Err(LayoutError::NoPage { page: 5, pages: 5 }));
    }

    #[test]
    fn sizes_without_bytes_or_addresses_are_refused() {
        for (layers, heads, pages) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (u32::MAX, u32::MAX, 1)] {
            let shape = PageShape { layers, heads, ..SHAPE };
            assert!(KvLayout::packed(PageOrder::Blhnc, shape, pages).is_err());
        }
        let strides = PageStrides { layer: usize::MAX / 2, page: 1, head: 1, token: 1 };
        assert!(KvLayout::new(SHAPE, 1, 0, strides).is_err());
    }
}
