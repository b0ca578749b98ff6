-- Returns the fields and values of each hash.
--
-- KEYS  the hashes

local found = {}
for i, key in ipairs(KEYS) do
  found[i] = redis.call('HGETALL', key)
end
return found
