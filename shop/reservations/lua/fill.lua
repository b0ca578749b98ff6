-- Sets fields of a hash that expires.
--
-- KEYS  1 the hash
-- ARGV  1 Unix time in milliseconds at which Redis deletes it; then fields and values

redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIREAT', KEYS[1], ARGV[1])
