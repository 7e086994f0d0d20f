// SPDX-License-Identifier: Apache-2.0

package nat

// takeShards keeps the EgressShards; they are served in a later step.
func (e *Engine) takeShards(batch Objects, d *dirty) {
	for key, object := range batch.Shards {
		if object == nil {
			delete(e.shards, key)
			continue
		}
		e.shards[key] = object
	}
}

func (e *Engine) shardTranslations() []Translation { return nil }
