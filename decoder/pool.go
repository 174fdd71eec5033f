package decoder

// Batches is the number of batches in a Pool. More of them let more small transactions
// be under way at once, fewer of them waste less of the budget in half-filled ones.
const Batches = 128

// Pool is the memory budget of a session: a fixed number of batches that circulate. Whoever
// finds it empty waits, and that is all the back-pressure there is.
type Pool struct {
	free  chan *Batch
	arena int
}

// NewPool returns a pool for rows of the layout that holds at most budget bytes of them
// at once. Memory is taken when a batch is first used. A row larger than the whole budget
// still passes, alone.
func NewPool(budget int, layout *Layout) *Pool {
	p := &Pool{free: make(chan *Batch, Batches), arena: budget / Batches}
	for range Batches {
		p.free <- &Batch{stride: len(layout.Columns)}
	}
	return p
}

// Free yields empty batches. A batch taken from it must pass through Prepare.
func (p *Pool) Free() <-chan *Batch { return p.free }

// Budget is the number of bytes that rows may take.
func (p *Pool) Budget() int { return p.arena * Batches }

// Available is the number of batches that wait to be used.
func (p *Pool) Available() int { return len(p.free) }

// Prepare makes b, fresh from Free, ready for a row of n bytes and reports whether that
// row is paid for. While it is not, the caller takes another batch from Free and gives it
// to b with Lend: a row larger than an arena occupies as many batches as its size is worth.
func (p *Pool) Prepare(b *Batch, n int) bool {
	if b.arena == nil {
		b.arena = make([]byte, 0, p.arena)
	}
	worth := (len(b.reserve) + 1) * p.arena
	return n <= worth || len(b.reserve) == Batches-1
}

// Lend keeps other out of circulation until b is recycled.
func (b *Batch) Lend(other *Batch) { b.reserve = append(b.reserve, other) }

// Recycle empties b and returns it, and what it was lent, to Free. It never blocks.
func (p *Pool) Recycle(b *Batch) {
	for _, other := range b.reserve {
		p.free <- other
	}
	b.reserve = b.reserve[:0]
	b.reset()
	p.free <- b
}
