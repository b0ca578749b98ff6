-- Return one SCAN step of the locks on this master, or the lock of one key.
-- KEYS[1] the lock, if only one is asked for; ARGV[1] SCAN cursor, ARGV[2] pattern of the keys
-- Returns the next cursor ("0" at the end) and a list of {key, value, milliseconds left}.
local step = {'0', KEYS}
if not KEYS[1] then
  step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000, 'TYPE', 'string')
end
local found = {}
for _, key in ipairs(step[2]) do
  local value = redis.call('GET', key)
  if value then
    found[#found + 1] = {key, value, redis.call('PTTL', key)}
  end
end
return {step[1], found}
